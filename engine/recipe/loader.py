"""Reads a recipe file and the command line's overrides, and says everything that is wrong, with lines."""

from __future__ import annotations

from pathlib import Path

from engine.errors import UsageError
from engine.findings import Finding
from engine.recipe import backup, columns, gates, keys, paths, retention
from engine.recipe.conflicts import contradictions
from engine.recipe.defaults import CONSTANT, DERIVED, fill
from engine.recipe.limits import limits
from engine.recipe.model import Loaded, Origin, Recipe
from engine.recipe.values import Unusable, convert, shown
from engine.text import _
from engine.yamldoc import MAX_BYTES, Mapping, Node, Scalar, Sequence, decode, merged, parse

MAX_FINDINGS = 100
SECRETS = ("hub_token",)
ORDER = {"error": 0, "warning": 1, "note": 2}


def load(path: str | Path, overrides: list[str] | tuple[str, ...] = ()) -> Loaded:
    """Read a recipe.

    Args:
        path: the file; see `builtin.find` for names of built-in recipes.
        overrides: `key=value` texts of the command line; relative paths in them start at the current folder.

    Returns:
        The recipe with all findings about its content. What is wrong is left out of the values.

    Raises:
        UsageError: the file is missing or cannot be read.
    """
    path = Path(path)
    data = _read(path)
    text, findings = decode(data)
    root: Node | None = None
    if not findings:
        root, findings = parse(text)
        if not findings and not isinstance(root, Mapping):
            findings = [_not_mapping(root)]
    work = _Work(path)
    if isinstance(root, Mapping):
        work.read(root)
    for override in overrides:
        work.override(override)
    work.convert()
    return work.finish(findings, text)


def _read(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise UsageError(
            _("there is no recipe {path}").format(path=path),
            where=str(path),
            fix=_("`ftui recipe list` shows the built-in ones, `ftui recipe new` writes one"),
            kind="no_such_recipe",
        ) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            _("the recipe cannot be read: {reason}").format(reason=reason),
            where=str(path),
            fix=_("give a readable YAML file"),
            kind="recipe_unreadable",
        ) from error


def _not_mapping(root: Node | None) -> Finding:
    what = _("the file is empty") if root is None else _("the file is not a mapping of keys to values")
    line = 1 if root is None else root.line
    return Finding("recipe_not_mapping", "error", what, _("write one `key: value` a line"), [line])


class _Work:
    """The state of one load: nodes by canonical key, then values."""

    def __init__(self, path: Path) -> None:
        self.file = path.absolute()
        self.folder = self.file.parent
        self.recipe = Recipe()
        self.nodes: dict[str, Node] = {}
        self.spelled: dict[str, str] = {}  # canonical name -> as written
        self.findings: list[Finding] = []

    def read(self, root: Mapping) -> None:
        """Take the keys of the file."""
        for key, node in merged(root):
            if key.text.startswith("x-"):
                continue
            name = keys.canonical(key.text)
            if name in self.nodes:
                self.duplicate(key, name)
            self.nodes[name], self.spelled[name] = node, key.text
            self.recipe.lines[name] = key.line

    def duplicate(self, key: Scalar, name: str) -> None:
        first = self.recipe.lines[name]
        detail = _("'{key}' is another name for '{name}', which line {line} gives").format(
            key=shown(key.text), name=self.spelled[name], line=first
        )
        finding = Finding("duplicate_key", "error", detail, _("keep one of them"), [key.line], key=name)
        finding.extra["first_line"] = first
        self.findings.append(finding)

    def override(self, text: str) -> None:
        """Take one `key=value` of the command line: it replaces what the file says."""
        key, equals, value = text.partition("=")
        key = key.strip()
        if not equals or not key:
            detail = _("'{text}' is not key=value").format(text=shown(text))
            finding = Finding("bad_override", "error", detail, _("write key=value without spaces"))
            finding.extra["override"] = shown(text)
            self.findings.append(finding)
            return
        if key.startswith("x-"):
            return
        name = keys.canonical(key)
        node, findings = _override_node(value)
        for finding in findings:
            finding.lines, finding.key = [], name
            finding.detail = _("{override}: {detail}").format(override=shown(text), detail=finding.detail)
            finding.extra["override"] = shown(text)
        self.findings += findings
        self.recipe.lines.pop(name, None)
        self.nodes.pop(name, None)
        self.spelled[name] = key
        self.recipe.overrides[name] = shown(text)
        if node is not None:
            self.nodes[name] = node

    def convert(self) -> None:
        """Turn nodes into values; the task comes first, because it decides what a key means."""
        self.value("task", keys.table())
        task = str(self.recipe.given.get("task", "sft"))
        known, foreign = keys.table(task), keys.foreign(task)
        for name in list(self.nodes):
            if name == "task":
                continue
            if name in known:
                self.value(name, known)
            elif name in foreign:
                self.value(name, foreign)
                if name in self.recipe.given:
                    self.unused(name, task)
                    self.recipe.given.pop(name)
            else:
                self.unknown(name)

    def value(self, name: str, known: dict[str, keys.Key]) -> None:
        node = self.nodes.get(name)
        if node is None or node.tagged:
            return
        try:
            value = convert(known[name], node)
            if name == columns.KEY:
                value = columns.checked(value)
            elif name == retention.KEY:
                value = retention.checked(value)
            if name in paths.PATH_KEYS and isinstance(value, str):
                value = self.path(name, value)
        except Unusable as problem:
            finding = self.report(problem.kind, name, problem.detail, problem.fix)
            if problem.inner is not None and isinstance(node, Mapping) and name not in self.recipe.overrides:
                finding.lines = [key.line for key, _value in merged(node) if key.text == problem.inner] or finding.lines
            return
        self.recipe.given[name] = value
        if isinstance(node, Sequence) and name not in self.recipe.overrides:
            self.recipe.item_lines[name] = [item.line for item in node.items]

    def path(self, name: str, value: str) -> str:
        base = Path.cwd() if name in self.recipe.overrides else self.folder
        if not value.strip():
            raise Unusable("wrong_type", _("{key} is empty").format(key=name), _("give a value, or leave it out"))
        try:
            return paths.expand(name, value, base)
        except paths.Undefined as undefined:
            detail = _("{key}: the variable ${name} is not set").format(key=name, name=undefined.name)
            fix = _("export {name}=… before the command, or write the path out").format(name=undefined.name)
            raise Unusable("undefined_variable", detail, fix) from undefined

    def report(self, kind: str, name: str, detail: str, fix: str) -> Finding:
        finding = self.recipe.finding(kind, "error", detail, fix, (name,))
        finding.key = self.spelled.get(name, name)[:80]
        self.findings.append(finding)
        return finding

    def unknown(self, name: str) -> None:
        reason = _gone().get(name)
        shown_at_all = len(self.findings) < MAX_FINDINGS  # looking for the nearest key is the slow part
        suggestion = keys.suggest(name) if not reason and shown_at_all else None
        detail = _("'{key}' is not a recipe key").format(key=shown(name))
        if reason:
            fix = _("delete it: {reason}").format(reason=reason)
        elif suggestion:
            fix = _("did you mean '{key}'?").format(key=suggestion)
        else:
            fix = _("check the spelling; keys of your own begin with x-")
        self.report("unknown_key", name, detail, fix).extra["suggestion"] = suggestion

    def unused(self, name: str, task: str) -> None:
        detail = _("{key} means nothing under task {task}: it is left out").format(key=name, task=task)
        self.findings += self.recipe.unused((name, "task"), detail, level="warning")

    def finish(self, findings: list[Finding], text: str) -> Loaded:
        """Fill in the defaults and look for contradictions."""
        recipe = self.recipe
        findings = [*findings, *self.findings]
        try:
            recipe.values = fill(recipe.given)
        except UsageError as error:
            sizes = ("global_batch_size", "per_device_train_batch_size", "gradient_accumulation_steps", "num_gpus")
            named = tuple(key for key in sizes if recipe.says(key))
            findings.append(recipe.finding("conflict", "error", error.what, error.fix or "", named))
            recipe.values = fill({**recipe.given, "global_batch_size": None})
        findings += contradictions(recipe)
        findings += gates.check(recipe)
        findings += backup.check(recipe)
        findings += limits(recipe)
        for secret in SECRETS:  # refused by now; it must not reach a resolved recipe or a screen
            if recipe.given.pop(secret, None) is not None:
                recipe.values[secret] = None
        findings.sort(key=lambda finding: (ORDER[finding.level], finding.lines[:1] or [1 << 30]))
        if (left_out := len(findings) - MAX_FINDINGS) > 0:
            more = Finding(
                "more_findings", findings[MAX_FINDINGS].level, _("more of the same kind"), "", count=left_out
            )
            findings = [*findings[:MAX_FINDINGS], more]
        return Loaded(recipe, findings, _origins(recipe), text, self.file)


def _gone() -> dict[str, str]:
    """Keys that other versions and tools have and nothing here answers to, with the reason."""
    stopping = _("`ftui stop` stops with everything saved; load_best_model_at_end takes the best checkpoint")
    return {
        "overwrite_output_dir": _("every run has a folder of its own, and nothing is overwritten"),
        "logging_dir": _("logs and metrics are in the run folder"),
        "save_safetensors": _("weights are always saved as safetensors"),
        "half_precision_backend": _("bf16 and fp16 use PyTorch's own"),
        "early_stopping": stopping,
        "early_stopping_patience": stopping,
        "early_stopping_threshold": stopping,
    }


def _override_node(value: str) -> tuple[Node | None, list[Finding]]:
    """The value of an override: YAML where it is written as such, else one plain word (`*.jsonl` is not an alias)."""
    text = value.strip()
    if not text.startswith(("[", "{", '"', "'", "!")):
        return Scalar(0, text=text), []
    root, findings = parse(text)
    return root, findings


def _origins(recipe: Recipe) -> dict[str, Origin]:
    """Where each key's value comes from."""
    origins: dict[str, Origin] = {}
    known = keys.table(recipe.task)
    for name, value in recipe.values.items():
        if name in recipe.overrides and name in recipe.given:
            origins[name] = "override"
        elif name in recipe.given and recipe.given[name] == value:
            origins[name] = "recipe"
        elif name in DERIVED and value != CONSTANT.get(name, known[name].default):
            origins[name] = "derived"
        else:
            origins[name] = "default"
    return origins
