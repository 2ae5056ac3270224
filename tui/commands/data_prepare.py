"""`ftui data prepare`: clean data from a recipe's, or from files as they are, and then the recipe, too."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from engine.errors import FtuiError, UsageError
from engine.files import user_path
from engine.text import _, number
from tui.output import Output

RECIPES = (".yaml", ".yml")
STATEMENT = ("source", "license", "right_to_train")
KEYS = ("dataset_path", "eval_dataset_path", "dataset_columns", "test_size", "seed")


def configure(verbs: Any) -> None:
    """The verb and its arguments."""
    prepare = verbs.add_parser("prepare", help=_("clean data, drop duplicates, mask, split, report; write a recipe"))
    prepare.add_argument(
        "what", metavar="RECIPE|DATA", help=_("a recipe, or data: a file, folder, glob, hf://owner/name, remote:path")
    )
    prepare.add_argument(
        "more", nargs="*", default=[], metavar="key=value", help=_("values for the recipe; more data files")
    )
    prepare.add_argument("--model", metavar="M", help=_("with DATA: write a recipe that tunes this model"))
    prepare.add_argument(
        "--eval", action="append", default=[], metavar="FILE", help=_("with DATA: rows to evaluate on")
    )
    prepare.add_argument(
        "--out", metavar="PATH", help=_("a new folder (default: NAME-data here); with DATA also NAME.yaml, the recipe")
    )
    prepare.add_argument("--privacy", choices=("mask", "drop", "keep"), default="mask", help=_("personal data (mask)"))
    prepare.add_argument("--keep-near", action="store_true", help=_("drop exact duplicates only"))
    prepare.add_argument("--source", default="", metavar="TEXT", help=_("where the data is from, for the report"))
    prepare.add_argument("--license", default="", metavar="TEXT", help=_("its license, for the report"))
    prepare.add_argument("--right", default="", metavar="TEXT", help=_("what allows training on it, for the report"))
    prepare.add_argument("--dry-run", action="store_true", help=_("say what would be done and write nothing"))
    common(prepare)


def common(verb: argparse.ArgumentParser) -> None:
    """What all verbs take."""
    verb.add_argument(
        "--column",
        action="append",
        default=[],
        metavar="OURS=THEIRS",
        help=_("a column by another name, for example prompt=question"),
    )
    verb.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help=_("one JSON document on stdout"))


def columns(pairs: list[str]) -> dict[str, str]:
    """The mapping that `--column` gives.

    Raises:
        UsageError: it is none.
    """
    from engine.data.forms import check_columns

    found = {}
    for pair in pairs:
        ours, sign, theirs = pair.partition("=")
        if not sign or not theirs:
            raise UsageError(
                _("'{pair}' does not map a column").format(pair=pair), fix=_("write OURS=THEIRS"), kind="bad_column"
            )
        found[ours] = theirs
    return check_columns(found)


def run(args: argparse.Namespace, out: Output) -> int:
    """Prepare it."""
    from engine.data import drops
    from engine.data.prepare import Wishes, prepare
    from engine.workspace import locate

    is_recipe = _is_recipe(args.what)
    if is_recipe:
        stem, values = _recipe(args)
        folder, target = user_path(args.out or f"{stem}-data").absolute(), None
    else:
        values = _from_data(args)
        folder, target = _targets(args)
    workspace = locate(args.home).root
    names, held_out = values["files"], values["held_out"]
    model = _counting(args.model, workspace / "cache", out) if not is_recipe else None
    wishes = Wishes(
        files=names,
        held_out=held_out,
        share=values["share"],
        seed=values["seed"],
        privacy=args.privacy,
        drop_near=not args.keep_near,
        columns={**values["columns"], **columns(args.column)},
        model=model,
        main_form=not is_recipe,
        dropped=drops.read(workspace),
        country=_country(),
        statement=_statement(args, names, workspace, out),
    )
    if args.dry_run:
        with tempfile.TemporaryDirectory() as scratch:
            document = prepare(wishes, Path(scratch) / folder.name)
    else:
        document = prepare(wishes, folder)
        if target is not None:
            _write_recipe(target, folder, document, args)
    document = {**document, "out": None if args.dry_run else str(folder)}
    if not is_recipe:
        document["recipe"] = str(target) if target is not None and not args.dry_run else None
    if out.as_json:
        out.json(document)
        return 0
    _say(document, args, folder, target, out)
    return 0


def _is_recipe(name: str) -> bool:
    from engine import recipe

    if name.endswith(RECIPES):
        return True
    return not os.path.lexists(name) and name in recipe.names()


def _country() -> str | None:
    from engine import settings

    return settings.load().country


def _recipe(args: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """The recipe's name and what it says of its data; what is wrong with those keys stops here."""
    from engine import recipe
    from engine.recipe.columns import of

    if args.model or args.eval:
        raise UsageError(
            _("--model and --eval are for data without a recipe"), where=args.what,
            fix=_("write model_name_or_path=… or eval_dataset_path=… instead"), kind="usage",
        )  # fmt: skip
    path = recipe.find(args.what)
    loaded = recipe.load(path, args.more)
    values = loaded.recipe.values
    for finding in loaded.findings:
        if finding.level == "error" and (finding.key in KEYS or not values):
            raise UsageError(finding.detail, where=str(path), fix=finding.fix, kind=finding.kind)
    if not values.get("dataset_path"):
        raise UsageError(
            _("the recipe names no training data"), where=str(path), fix=_("set dataset_path"), kind="no_data"
        )
    if str(values["dataset_path"]).startswith("builtin:"):
        raise UsageError(
            _("the built-in data need no preparation"), where=str(path), fix=_("set dataset_path"), kind="no_data"
        )
    return Path(path).stem, {
        "files": [str(values["dataset_path"])],
        "held_out": [str(values["eval_dataset_path"])] if values.get("eval_dataset_path") else [],
        "share": float(values.get("test_size") or 0.0),
        "seed": int(values.get("seed") or 0),
        "columns": of(values),
    }


def _from_data(args: argparse.Namespace) -> dict[str, Any]:
    """The same for data by itself: files of a folder that are there to test on are for evaluation."""
    from engine.data import places, sources
    from engine.recipe.defaults import fill

    defaults = fill({})
    files = [args.what, *(name for name in args.more if "=" not in name)]
    held_out = list(args.eval)
    folder = user_path(args.what)
    if not held_out and len(files) == 1 and folder.is_dir():
        inside = sources.resolve(files)
        to_train = places.to_train_on(inside, folder)
        tests = [file for file in inside if places.OTHER.search(file.name) and file not in to_train]
        if tests:
            files, held_out = [str(file) for file in inside if file not in tests], [str(file) for file in tests]
    return {
        "files": files, "held_out": held_out, "share": float(defaults["test_size"]), "seed": int(defaults["seed"]),
        "columns": {},
    }  # fmt: skip


def _targets(args: argparse.Namespace) -> tuple[Path, Path | None]:
    """The new folder, and the recipe beside it where one is wanted.

    Raises:
        UsageError: the recipe is there already, or is asked for without a model.
    """
    stem = Path(args.what.partition("://")[2].partition("@")[0].rstrip("/") or args.what.rstrip("/:")).name
    stem = stem.rpartition(":")[2].partition(".")[0] or "data"
    target: Path | None = None
    if args.out and args.out.endswith(RECIPES):
        target = user_path(args.out).absolute()
        folder = target.with_name(f"{target.stem}-data")
    else:
        folder = user_path(args.out or f"{stem}-data").absolute()
        target = folder.with_name(f"{stem}.yaml") if args.model else None
    if target is not None and not args.model:
        raise UsageError(
            _("a recipe needs a model"), where=str(target), fix=_("add --model: a folder, or a name of the hub"),
            kind="usage",
        )  # fmt: skip
    if target is not None and os.path.lexists(target):
        raise UsageError(
            _("{path} is there already, and nothing is overwritten").format(path=target), where=str(target),
            fix=_("choose another --out, or delete it"), kind="exists",
        )  # fmt: skip
    return folder, target


def _counting(model: str | None, cache: Path, out: Output) -> str | None:
    """The model's folder, to count tokens with; None (and a word) where it is not on this machine."""
    if model is None:
        return None
    from engine.data import tokens

    folder = tokens.located(model, cache)
    if (folder / "tokenizer.json").is_file():
        return str(folder)
    if folder.is_dir() or model.startswith((".", "/", "~")):
        tokens.load(model)  # says what is wrong
    out.note(_("{model} is not on this machine: its tokens are not counted").format(model=model))
    return None


# What people say of the data


def _statement(args: argparse.Namespace, names: list[str], workspace: Path, out: Output) -> dict[str, str]:
    """Source, license and right to train: from the flags, from the last time, or asked once."""
    from engine.files import read_json, write_json

    said = dict(zip(STATEMENT, (args.source, args.license, args.right), strict=True))
    place = workspace / "data_statements.json"
    key = str(Path(names[0]).absolute()) if os.path.lexists(names[0]) else names[0]
    known = read_json(place)
    before = known.get("data", {}).get(key) if isinstance(known, dict) else None
    if isinstance(before, dict):
        said = {name: said[name] or str(before.get(name, "")) for name in STATEMENT}
    elif not all(said.values()) and not out.as_json and not args.dry_run and sys.stdin.isatty() and sys.stderr.isatty():
        questions = (
            _("Where is the data from?"),
            _("Under which license?"),
            _("What allows training on it (own data, consent, contract, license)?"),
        )
        out.note(_("Three questions for the report; an empty answer leaves it open."))
        for name, question in zip(STATEMENT, questions, strict=True):
            if not said[name]:
                sys.stderr.write(f"{question} ")
                sys.stderr.flush()
                said[name] = sys.stdin.readline().strip()[:500]
    if any(said.values()) and not args.dry_run and said != before:
        data = known.get("data", {}) if isinstance(known, dict) else {}
        try:
            workspace.mkdir(parents=True, exist_ok=True)
            write_json(place, {"format": 1, "data": {**data, key: said}})
        except OSError as error:
            out.note(_("the answers are not remembered: {reason}").format(reason=error.strerror or error))
    return said


# The recipe


def _write_recipe(target: Path, folder: Path, document: dict[str, Any], args: argparse.Namespace) -> None:
    from engine.files import write_atomic
    from engine.yamledit import scalar

    counted = document["tokens"]
    notes: dict[str, str] = {}
    model = user_path(args.model)
    values: dict[str, Any] = {"model_name_or_path": str(model.absolute()) if model.is_dir() else args.model}
    if set(document["forms"]) == {"preference"}:
        values["task"] = "dpo"
    values["method"] = "lora"
    values["dataset_path"] = os.path.relpath(folder / "train.jsonl", target.parent)
    if document["rows"]["eval"]:
        values["eval_dataset_path"] = os.path.relpath(folder / "eval.jsonl", target.parent)
    if counted:
        values |= counted["suggested"]
        notes["max_length"] = _("cuts {share} % of the rows").format(share=number(100 * counted["cut"], 1))
        notes["packing"] = _("a row fills {share} % of that").format(share=number(100 * counted["filled"]))
    values |= dict(pair.split("=", 1) for pair in args.more if "=" in pair)
    lines = [f"# {_('Made by `ftui data prepare`; {report} says of what.').format(report=f'{folder.name}/report.md')}"]
    for key, value in values.items():
        given = value if isinstance(value, str) and f"{key}={value}" in args.more else scalar(value)
        lines.append(f"{key}: {given}" + (f"  # {notes[key]}" if key in notes else ""))
    try:
        write_atomic(target, ("\n".join(lines) + "\n").encode())
    except OSError as error:
        raise FtuiError(
            _("the recipe cannot be written: {reason}").format(reason=error.strerror or error), where=str(target),
            fix=_("choose another --out; the data is in {folder}").format(folder=folder), kind="unwritable",
        ) from error  # fmt: skip


def _say(document: dict[str, Any], args: argparse.Namespace, folder: Path, target: Path | None, out: Output) -> None:
    rows = document["rows"]
    out.line(
        _("{train} rows to train on, {eval} for evaluation, of {read} read").format(
            train=number(rows["train"]), eval=number(rows["eval"]), read=number(rows["read"])
        ),
        "ok",
    )
    hints = {
        _("unusable"): _("`ftui data check` names their lines"),
        "near_duplicate": _("--keep-near keeps them"),
    }
    for kind, count in {_("unusable"): rows["unusable"], **rows["dropped"]}.items():
        if count:
            hint = f" ({hints[kind]})" if kind in hints else ""
            out.line(_("  left out: {kind} {n}").format(kind=kind, n=number(count)) + hint)
    for kind, count in document["personal_data"].items():
        out.line(_("  personal data ({how}): {kind} {n}").format(how=args.privacy, kind=kind, n=number(count)))
    if document["personal_data"] and (crosses := document["border"]["crosses"]) != []:
        from engine.data import border

        out.line(f"  {border.sentence(document['border'])}", "warning" if crosses else None)
    for finding in document["findings"]:
        if finding["level"] == "error" and finding["subtype"] == "columns":
            out.line(f"  {finding['file']}: {finding['detail']}", "warning")
    missing = [name for name, text in document["statement"].items() if not text]
    if missing:
        out.note(
            _("  the report does not say: {names} (--source, --license, --right)").format(names=", ".join(missing))
        )
    if args.dry_run:
        return
    out.line(_("written to {path}; report.md says it all").format(path=folder))
    if target is not None:
        out.note(_("  next: ftui run {recipe}").format(recipe=os.path.relpath(target)))
        return
    used = f"dataset_path={folder / 'train.jsonl'}"
    if rows["eval"]:
        used += f" eval_dataset_path={folder / 'eval.jsonl'}"
    recipe = args.what if _is_recipe(args.what) else _("RECIPE")
    out.note(_("  next: ftui run {recipe} {values}").format(recipe=recipe, values=used))
