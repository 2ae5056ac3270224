"""What a run has that is worth a copy, piece by piece, in the order of its value per byte.

An item is committed as a whole: its manifest goes up last. `checkpoints/checkpoint-N` carry their own MANIFEST.json;
`final` and `adapters/checkpoint-N` get one in the same form; the run's own files have BACKUP.json.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from engine.backup.ledger import Ledger
from engine.backup.policy import Policy, strings
from engine.checkpoint import ledger as checkpoints
from engine.checkpoint import manifest, pruning
from engine.files import read_json
from engine.workspace import RunFolder

RUN = "run"
ROWS = "rows"  # stands in a ledger for the tokenized rows, once they were pruned there
SMALL = 1 << 20
INLINE = 256 * 1024
GROWING = ("journal.jsonl", "events.jsonl")
CHANGING = ("state.json", "resolved.json", "plan.json", "environment.json", "requirements.txt", "pins.json")
REPORTS = ("eval", "evaluation", "reports")
NOT_SOURCES = (
    "model_name_or_path",
    "output_dir",
    "cache_dir",
    "logging_dir",
    "adapter_name_or_path",
    "backup",
    "resume_from_checkpoint",
)
ADAPTER = re.compile(r"(adapter_|README|tokenizer|special_tokens|chat_template|vocab|merges|added_tokens)")
# The order in which files go up.
REPORT, ADAPTERS, DATA, WEIGHTS, STATE = range(5)


@dataclass(frozen=True)
class Source:
    """One file to be there: where it is here, what its manifest says its hash must be, and how early it goes."""

    path: Path
    size: int
    value: int
    sha256: str | None = None


@dataclass
class Item:
    """A piece that is committed as a whole. `folder` is its place below the run's at the remote."""

    name: str
    folder: str
    files: dict[str, Source]
    manifest: str = manifest.NAME
    step: int | None = None
    sealed: Path | None = None  # its own manifest, where it has one
    wanted: bool = True
    document: dict[str, Any] = field(default_factory=dict)  # what a manifest made here says beside the files

    @property
    def bytes(self) -> int:
        return sum(source.size for source in self.files.values())

    def remote(self, path: str) -> str:
        """A file's path below the run's folder at the remote."""
        return f"{self.folder}/{path}" if self.folder else path


def wanted(run: RunFolder, policy: Policy, ledger: Ledger, *, again: bool = False, fresh: bool = False) -> list[Item]:
    """Everything that is to be at the remote, the most valuable first.

    That is what the policy wants now and what is being sent: what was begun is finished, though a newer checkpoint is
    wanted by now. What was pruned there on request stays away (unless `again`). `fresh` takes new snapshots of the
    files that change: only the holder of the run's backup lock may.
    """
    gone = set() if again else {name for name, item in ledger.items.items() if item.gone}
    begun = frozenset(name for name, item in ledger.items.items() if item.started and not item.safe)
    rows = policy.rows and ROWS not in gone
    return [item for item in collect(run, replace(policy, rows=rows), begun, fresh=fresh) if item.name not in gone]


def collect(run: RunFolder, policy: Policy, also: frozenset[str] = frozenset(), *, fresh: bool = False) -> list[Item]:
    """Everything that the policy wants of a run, and the items named in `also`, whatever is there already."""
    entries = [entry for entry in checkpoints.list(run.checkpoints) if entry.state == "complete"]
    found = [run_files(run, policy, fresh=fresh)]
    final = final_model(run) if "final" in policy.keep or "all" in policy.keep else None
    if final is not None:
        found.append(final)
    wanted = _wanted(entries, policy)
    for entry in entries:
        item = adapter_of(entry) if "adapter_only" in policy.keep else checkpoint(entry)
        if item is None:
            continue
        if entry.path.name in wanted or item.name in also:
            found.append(item)
    rank = {name: position for position, name in enumerate(wanted)}
    found.sort(key=lambda item: (item.name != RUN, item.name != "final", rank.get(item.name.rpartition("/")[2], 10**9)))
    return found


def _wanted(entries: list[checkpoints.Entry], policy: Policy) -> list[str]:
    """The names of the checkpoints that the policy wants: the best, then from the newest on."""
    best = pruning.best_of(entries)
    names: list[str] = []
    if best and any(entry.path.name == best for entry in entries) and {"best", "all"} & set(policy.keep):
        names.append(best)
    resumable = [entry for entry in entries if entry.resumable]
    if "all" in policy.keep:
        names += [entry.path.name for entry in reversed(entries)]
    elif "last" in policy.keep and resumable:
        names.append(resumable[-1].path.name)
    return list(dict.fromkeys(names))


def checkpoint(entry: checkpoints.Entry) -> Item | None:
    """A sealed checkpoint as an item."""
    content = manifest.read(entry.path)
    if content is None:
        return None
    files = {
        name: Source(entry.path / name, int(known["size"]), _value(name, int(known["size"])), str(known["sha256"]))
        for name, known in content.files.items()
    }
    name = f"checkpoints/{entry.path.name}"
    return Item(name, name, files, step=entry.step, sealed=entry.path / manifest.NAME)


def adapter_of(entry: checkpoints.Entry) -> Item | None:
    """What of a checkpoint is the adapter; None where it has none."""
    content = manifest.read(entry.path)
    if content is None or not any(name.startswith("adapter_model") for name in content.files):
        return None
    files = {
        name: Source(entry.path / name, int(known["size"]), ADAPTERS, str(known["sha256"]))
        for name, known in content.files.items()
        if ADAPTER.match(name)
    }
    name = f"adapters/{entry.path.name}"
    meta = {"step": entry.step, "attempt": content.attempt, "metrics": content.metrics, "versions": content.versions}
    return Item(name, name, files, step=entry.step, document=meta)


def _value(name: str, size: int) -> int:
    if ADAPTER.match(name) or size < SMALL:
        return ADAPTERS
    return WEIGHTS if name.startswith(("model", "pytorch_model")) else STATE


def final_model(run: RunFolder) -> Item | None:
    """The trained adapter or model of a run that is done; None while there is none."""
    state = run.read_state()
    if state.get("state") != "done" or not run.final.is_dir():
        return None
    files = {
        name: Source(path, size, ADAPTERS if ADAPTER.match(name) or size < SMALL else WEIGHTS)
        for name, path, size in _walk(run.final)
    }
    return Item("final", "final", files, document={"step": state.get("step")}) if files else None


def run_files(run: RunFolder, policy: Policy, *, fresh: bool = False) -> Item:
    """What makes the run one that can be read and gone on with: recipe, journal, data, files it names."""
    files: dict[str, Source] = {}
    if run.recipe.is_file():
        files["recipe.yaml"] = _source(run.recipe, REPORT)
    for name in (*CHANGING, *GROWING):
        if (snapshot := _snapshot(run, name, fresh=fresh)) is not None:
            files[name] = _source(snapshot, REPORT)
    for folder in REPORTS:
        for name, path, size in _walk(run.path / folder):
            files[f"{folder}/{name}"] = Source(path, size, REPORT)
    data = read_json(run.data / "data.json")
    if isinstance(data, dict):  # written last: before it the rows are not complete
        for name, path, size in _walk(run.data):
            if policy.rows or not name.startswith(("train/", "eval/")):
                files[f"data/{name}"] = Source(path, size, DATA if size > SMALL else REPORT)
    named: dict[str, str] = {}
    for path in _named_by(run, data if isinstance(data, dict) else {}):
        name = _free_name(path, files)
        files[name] = _source(path, DATA if path.stat().st_size > SMALL else REPORT)
        named[name] = str(path)
    return Item(
        RUN, "", files, manifest="BACKUP.json", document={"run": run.name, "named": named, "base": base_model(run)}
    )


def base_model(run: RunFolder) -> dict[str, Any]:
    """The base model as recorded: it is not backed up, so whoever restores must be able to get the same one."""
    recipe = run.read_resolved().get("recipe")
    recipe = recipe if isinstance(recipe, dict) else {}
    environment = read_json(run.environment)
    known = environment.get("model") if isinstance(environment, dict) else None
    result = {"name": recipe.get("model_name_or_path"), "revision": recipe.get("model_revision")}
    return {**result, **known} if isinstance(known, dict) else result


def _named_by(run: RunFolder, data: dict[str, Any]) -> list[Path]:
    """The files that the recipe names: the dataset as it was read, templates, functions, and other files."""
    recipe = run.read_resolved().get("recipe")
    recipe = recipe if isinstance(recipe, dict) else {}
    found: dict[Path, None] = {}
    for source in data.get("sources") or []:
        if isinstance(source, dict) and isinstance(source.get("path"), str):
            found[Path(source["path"])] = None
    for key, value in recipe.items():
        if key in NOT_SOURCES:
            continue
        for text in strings(value):
            if not text.startswith("/") or "\n" in text or len(text) > 4096:
                continue
            path = Path(text)
            try:
                if path.is_file():
                    found[path] = None
                elif path.is_dir() and key.endswith("_path"):
                    found.update(dict.fromkeys(inner for _name, inner, _size in _walk(path)))
            except OSError:
                continue
    return [path for path in found if path.is_file() and not path.is_relative_to(run.path)]


def _free_name(path: Path, taken: dict[str, Source]) -> str:
    name, number = f"named/{path.name}", 1
    while name in taken:
        number += 1
        name = f"named/{number}/{path.name}"
    return name


def _source(path: Path, value: int) -> Source:
    return Source(path, path.stat().st_size, value)


def _walk(folder: Path) -> Iterator[tuple[str, Path, int]]:
    """The files below a folder, hidden ones left out: path inside it, path, size."""
    if not folder.is_dir():
        return
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if not any(part.startswith(".") for part in name.split("/")) and path.is_file():
            yield name, path, path.stat().st_size


def _snapshot(run: RunFolder, name: str, *, fresh: bool) -> Path | None:
    """A copy of a file that changes while the run lives: whole lines of one that grows; None where there is none."""
    original, copy = run.path / name, run.path / "backup" / "snapshots" / name
    if not fresh:
        return next((path for path in (copy, original) if path.is_file()), None)
    try:
        size = original.stat().st_size
        if name in GROWING:
            if copy.exists() and copy.stat().st_size == size:
                return copy
        elif copy.exists() and copy.read_bytes() == original.read_bytes():
            return copy
        copy.parent.mkdir(parents=True, exist_ok=True)
        temporary = copy.with_name(f".{name}.tmp")
        shutil.copyfile(original, temporary)
        if name in GROWING:
            _cut_partial_line(temporary)
        temporary.replace(copy)
    except FileNotFoundError:
        return None
    return copy


def _cut_partial_line(path: Path) -> None:
    with open(path, "r+b") as file:
        end = file.seek(0, 2)
        start = max(0, end - SMALL)
        file.seek(start)
        tail = file.read()
        file.truncate(start + tail.rfind(b"\n") + 1)
