"""Can this server be given back now? Everything of value on it, and whether it is safe elsewhere.

Safe is what is proved at a remote as it is here now, what lies on a disk that outlives the server, and what the user
said to have elsewhere (as long as it does not change). What is not known is not safe.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from engine import settings
from engine.backup import items, remotes
from engine.backup.ledger import Ledger
from engine.backup.policy import strings
from engine.backup.status import at_risk, effective
from engine.checkpoint import ledger as checkpoints
from engine.errors import FtuiError
from engine.files import Lock, read_json, write_json
from engine.lease import disks, gather
from engine.run.status import LIVE, state_of
from engine.text import _, duration, gigabytes, ngettext, number
from engine.workspace import RunFolder, Workspace

ACCEPTED = "accepted.json"
MANY = 100_000  # files of one folder that are looked at one by one
FILES = ("dropped_rows.jsonl", "data_statements.json")  # of the workspace: choices that somebody made by hand
Kind = Literal["run", "data", "file", "model", "merged", "evaluation", "settings"]
Style = Literal["ok", "warning", "error", "dim", "bold"]


@dataclass
class Thing:
    """Something of value. `where`: what keeps it; None: nothing but this server."""

    kind: Kind
    name: str
    path: str
    bytes: int
    disk: str
    where: str | None
    reason: str = ""
    fix: str = ""

    @property
    def safe(self) -> bool:
        return self.where is not None

    def to_json(self) -> dict[str, Any]:
        return {**self.__dict__, "safe": self.safe}


@dataclass
class Found:
    """What the check found."""

    things: list[Thing] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def safe(self) -> bool:
        return all(thing.safe for thing in self.things)

    def to_json(self) -> dict[str, Any]:
        bad = [thing for thing in self.things if not thing.safe]
        return {
            "safe": self.safe,
            "unsafe_bytes": sum(thing.bytes for thing in bad),
            "things": [thing.to_json() for thing in self.things],
            "notes": self.notes,
        }


class _Check:
    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.known = settings.load()
        value = read_json(workspace.keeper_dir / ACCEPTED)
        self.accepted: dict[str, Any] = value.get("files", {}) if isinstance(value, dict) else {}
        self.found = Found()
        self.proved: set[str] = set()  # files of runs that are at a remote as they are here
        self._disks: dict[str, str] = {}

    def disk(self, path: Path) -> str:
        folder = os.path.realpath(path if path.is_dir() else path.parent)
        if folder not in self._disks:
            self._disks[folder] = disks.persistence(Path(folder), self.known)
        return self._disks[folder]

    def elsewhere(self, path: Path) -> str | None:
        """What else keeps a file or folder: its disk, a remote, or the user's word."""
        if self.disk(path) == "persistent":
            return _("this disk outlives the server")
        files = list(_files(path))
        if files and len(files) < MANY:
            if all(str(file) in self.proved for file in files):
                return _("at the remote, with a run")
            if all(self.accepted.get(str(file)) == _stamp(file) for file in files):
                return _("you have it elsewhere")
        return None

    def add(self, kind: Kind, name: str, path: Path, *, reason: str = "", fix: str = "") -> None:
        """A file or folder that is of value by itself; one that is counted already is not counted again."""
        text = os.path.realpath(path)
        if any(thing.path == text for thing in self.found.things):
            return
        where = self.elsewhere(path)
        usual = _("only here; copy it, or `ftui lease accept PATH` where you have it elsewhere")
        size = sum(_size(file) for file in _files(path))
        disk = self.disk(path)
        thing = Thing(
            kind,
            name,
            text,
            size,
            disk,
            where,
            "" if where else reason or _("only here"),
            "" if where else fix or usual,
        )
        self.found.things.append(thing)

    # What there is

    def run(self, run: RunFolder) -> None:
        state = run.read_state()
        live = state_of(state) in LIVE
        disk = self.disk(run.path)
        size = sum(entry.bytes for entry in checkpoints.list(run.checkpoints)) + sum(map(_size, _files(run.final)))
        thing = Thing("run", run.name, str(run.path), size, disk, None)
        self.found.things.append(thing)
        if live:
            thing.reason = _("it is training")
            thing.fix = _("`ftui stop {run}` saves and stops it").format(run=run.name)
            return
        try:
            policy = effective(run)
        except FtuiError as error:
            policy, thing.reason, thing.fix = None, error.what, error.fix or ""
        if policy is not None:
            ledger = Ledger(run.path / "backup", policy.remote)
            wanted = items.wanted(run, policy, ledger)
            open_ = []
            for item in wanted:
                record = ledger.item(item.name)
                if disks.is_here(policy.remote, self.known):
                    continue
                if gather.settled(run, item, record, policy):
                    self.proved.update(str(source.path) for source in item.files.values())
                else:
                    open_.append((item, record))
            gone = items.RUN not in {item.name for item in wanted}
            if disks.is_here(policy.remote, self.known):
                thing.reason = _("its remote is a folder of this server")
                thing.fix = _("back it up elsewhere: `ftui backup now {run} --remote NAME:bucket/folder`")
                thing.fix = thing.fix.format(run=run.name)
            elif not open_ and not gone and not self._newer(run, policy):
                thing.where = policy.to(run.name)
                return
            missing = sum(gather.missing(item, record)[0] for item, record in open_)
            thing.reason = thing.reason or self._why(run, policy, missing, len(open_))
            thing.fix = thing.fix or _("`ftui backup now {run}`").format(run=run.name)
        if disk == "persistent":
            thing.where, thing.reason, thing.fix = _("this disk outlives the server"), "", ""
        elif policy is None and not thing.reason:
            thing.reason = _("it has no remote")
            thing.fix = _("`ftui backup now {run} --remote NAME:bucket/folder`").format(run=run.name)

    def _newer(self, run: RunFolder, policy: Any) -> bool:
        """Whether there are later steps here than what is proved there, of a policy that does not want the last one."""
        if {"last", "all"} & set(policy.keep) or run.read_state().get("state") == "done":
            return False
        return bool(at_risk(run, policy)["steps"])

    def _why(self, run: RunFolder, policy: Any, missing: int, count: int) -> str:
        lost = at_risk(run, policy)
        parts = []
        if missing:
            parts.append(_("{size} not sent to {remote}").format(size=gigabytes(missing), remote=policy.remote))
        elif count:
            parts.append(_("not proved at {remote}").format(remote=policy.remote))
        if lost["steps"]:
            text = ngettext("{n} step would be lost", "{n} steps would be lost", lost["steps"])
            text = text.format(n=number(lost["steps"]))
            parts.append(text if not lost["seconds"] else f"{text} ({duration(lost['seconds'])})")
        return ", ".join(parts) or _("what its policy keeps is there, but later steps are not")

    def named(self, run: RunFolder) -> None:
        """What a run's recipe names: data, scripts, templates, a base model of its own, where its result was copied."""
        resolved = run.read_resolved()
        recipe = resolved.get("recipe")
        recipe = recipe if isinstance(recipe, dict) else {}
        source = resolved.get("source")
        if isinstance(source, str) and Path(source).is_file() and not _in_package(source) and not _same(run, source):
            self.add("file", Path(source).name, Path(source), reason=_("a recipe that was changed after its run began"))
        data = read_json(run.data / "data.json")
        for entry in (data.get("sources") or []) if isinstance(data, dict) else []:
            if isinstance(entry, dict) and isinstance(entry.get("path"), str):
                self._path("data", entry["path"], run)
        for key, value in recipe.items():
            if key in ("backup", "cache_dir", "logging_dir", "resume_from_checkpoint"):
                continue
            kind: Kind = "data" if "dataset" in key else "file"
            if key in ("model_name_or_path", "adapter_name_or_path"):
                kind = "model"
            elif key == "output_dir":
                kind = "merged"
            for text in strings(value):
                self._path(kind, text, run)

    def _path(self, kind: Kind, text: str, run: RunFolder) -> None:
        if not text.startswith("/") or "\n" in text or len(text) > 4096:
            return
        path = Path(text)
        try:
            if (
                not path.exists()
                or path.is_relative_to(self.workspace.cache_dir)
                or _in_package(text)
                or path == Path("/")
            ):
                return
        except OSError:
            return
        if path.is_relative_to(run.path) or _of_hub(path):
            return  # part of the run, or fetched again from the hub by its commit
        if kind == "merged" and _copies(path, run.final):
            return
        self.add(kind, path.name, path)

    def merged(self) -> None:
        """Merged models: in a run's folder, where `ftui merge` wrote one, and what a server was started with."""
        places = {run.path / "merged" for run in self.workspace.folders()}
        for line in _lines(self.workspace.root / "merged.jsonl"):
            if isinstance(line.get("path"), str):
                places.add(Path(line["path"]))
        for spec in (self.workspace.root / "serve").glob("*/spec.json"):
            value = read_json(spec)
            for text in strings(value) if isinstance(value, dict) else ():
                if text.startswith("/") and (Path(text) / "provenance.json").is_file():
                    places.add(Path(text))
        for place in sorted(places):
            if place.is_dir():
                fix = _("copy it, or merge again on another server: `ftui merge`, from the run and its base model")
                self.add(
                    "merged", place.name, place, fix=fix + _("; `ftui lease accept PATH` says that you need it no more")
                )

    def settings(self) -> None:
        folder = settings.path().parent
        for path in (settings.path(), remotes.own_config(), folder / "notices"):
            if path.is_file():
                self.add("settings", path.name, path)
        for name in FILES:
            if (self.workspace.root / name).is_file():
                self.add("settings", name, self.workspace.root / name)

    def evaluations(self) -> None:
        """Those of models without a run."""
        for folder in sorted((self.workspace.root / "evaluation").glob("*")):
            if folder.is_dir():
                self.add("evaluation", folder.name, folder)


def check(workspace: Workspace) -> Found:
    """Look at everything; from the files here alone, nothing is asked of a remote."""
    looked = _Check(workspace)
    runs = [run for run in workspace.runs() if run.is_run()]
    for run in runs:
        looked.run(run)
    for run in runs:
        looked.named(run)
    looked.merged()
    looked.evaluations()
    looked.settings()
    if any(thing.where and ":" in thing.where for thing in looked.found.things):
        looked.found.notes.append(_("what is at a remote was proved there before; `ftui backup verify RUN` asks again"))
    if any(not thing.safe and thing.disk == "unknown" for thing in looked.found.things):
        looked.found.notes.append(
            _("it is not known whether the disk outlives the server: `ftui lease disk PATH persistent` says so")
        )
    return looked.found


def accept(workspace: Workspace, paths: list[Path]) -> int:
    """Remember that the user has these files elsewhere, as they are now; how many."""
    workspace.prepare()
    path = workspace.keeper_dir / ACCEPTED
    with Lock(path.with_name(f".{ACCEPTED}.lock")).held():
        value = read_json(path)
        files = value.get("files", {}) if isinstance(value, dict) else {}
        new = {str(file): _stamp(file) for given in paths for file in _files(Path(os.path.realpath(given)))}
        write_json(path, {"format": 1, "time": time.time(), "files": {**files, **new}})
    return len(new)


def lines(found: Found, *, everything: bool = False) -> Iterator[tuple[str, Style | None]]:
    """The check in words, the answer first."""
    bad = [thing for thing in found.things if not thing.safe]
    if not bad:
        yield _("yes: everything of value is safe elsewhere"), "ok"
    else:
        size = gigabytes(sum(thing.bytes for thing in bad))
        text = ngettext(
            "no: {n} thing ({size}) is only on this server", "no: {n} things ({size}) are only on this server", len(bad)
        )
        yield text.format(n=number(len(bad)), size=size), "error"
    words = {
        "run": _("run"), "data": _("data"), "file": _("file"), "model": _("model"), "merged": _("merged"),
        "evaluation": _("report"), "settings": _("settings"),
    }  # fmt: skip
    for thing in bad:
        yield f"  {words[thing.kind]:<9} {thing.name}  {gigabytes(thing.bytes)}  {thing.reason}", "warning"
        if thing.kind != "run":
            yield f"            {thing.path}", "dim"
        yield f"            {thing.fix}", "dim"
    for thing in found.things if everything else ():
        if thing.safe:
            yield f"  {words[thing.kind]:<9} {thing.name}  {gigabytes(thing.bytes)}  {thing.where}", "ok"
    for note in found.notes:
        yield note, "dim"


def _files(path: Path) -> Iterator[Path]:
    """The file, or the files below a folder; bounded."""
    if path.is_file():
        yield Path(os.path.realpath(path))
        return
    count = 0
    for folder, _folders, names in os.walk(path):
        for name in names:
            yield Path(folder, name)
            count += 1
            if count >= MANY:
                return


def _stamp(path: Path) -> list[int]:
    try:
        info = path.stat()
    except OSError:
        return []
    return [info.st_size, info.st_mtime_ns, info.st_ino]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _same(run: RunFolder, source: str) -> bool:
    """Whether a recipe is still the text that the run was started with (overrides were appended to the copy)."""
    try:
        return run.recipe.read_bytes().startswith(Path(source).read_bytes().rstrip(b"\n"))
    except OSError:
        return False


def _in_package(text: str) -> bool:
    import recipes

    return Path(text).is_relative_to(Path(recipes.__file__).parent)


def _of_hub(path: Path) -> bool:
    return any(part.startswith("models--") for part in path.parts)


def _copies(path: Path, final: Path) -> bool:
    """Whether a folder holds nothing that the run's final model does not."""
    names = {file.relative_to(path).as_posix(): _size(file) for file in _files(path)} if path.is_dir() else {}
    return bool(names) and all(_size(final / name) == size for name, size in names.items())


def _lines(path: Path) -> list[dict[str, Any]]:
    from engine import journal

    return list(journal.read_all(path)) if path.exists() else []
