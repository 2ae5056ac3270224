"""Where things are: the workspace and its run folders (docs/files.md)."""

from __future__ import annotations

import errno
import itertools
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import FtuiError, UsageError
from engine.files import fsync_dir, read_json, user_path
from engine.text import _, printable

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")
DEFAULT_DATA_DISK = Path("/data/ft")
_STATE_TYPES: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("state", "phase", "device", "control", "resumed_from", "path"), str),
    **dict.fromkeys(("step", "max_steps", "attempt", "restarts", "world_size", "exit_code"), int),
    **dict.fromkeys(("loss", "eval_loss", "epoch", "eta_s", "tokens_per_s", "unsaved_s", "earlier_s"), (int, float)),
    **dict.fromkeys(("created", "started", "ended", "updated"), (int, float)),
    **dict.fromkeys(("supervisor", "launcher", "last_checkpoint", "error"), dict),
    "gpus": list,
}


@dataclass(frozen=True)
class RunFolder:
    """One run's folder; the properties name its files and touch nothing."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def recipe(self) -> Path:
        return self.path / "recipe.yaml"

    @property
    def resolved(self) -> Path:
        return self.path / "resolved.json"

    @property
    def plan(self) -> Path:
        return self.path / "plan.json"

    @property
    def environment(self) -> Path:
        return self.path / "environment.json"

    @property
    def state(self) -> Path:
        return self.path / "state.json"

    @property
    def journal(self) -> Path:
        return self.path / "journal.jsonl"

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def hardware(self) -> Path:
        return self.path / "hardware.jsonl"

    @property
    def request(self) -> Path:
        return self.path / "request.json"

    @property
    def lock(self) -> Path:
        return self.path / "supervisor.lock"

    @property
    def control(self) -> Path:
        return self.path / "control.sock"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def data(self) -> Path:
        return self.path / "data"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def final(self) -> Path:
        return self.path / "final"

    def is_run(self) -> bool:
        """Whether it holds what makes a folder a run's."""
        return os.path.exists(self.resolved) or os.path.exists(self.state)  # noqa: PTH110 - Path's may raise

    def read_state(self) -> dict[str, Any]:
        """state.json, or {} when it is absent or unreadable; a value of a wrong type is left out.

        A copy of a run's folder holds the original's state.json: its processes are not the copy's, and what is asked
        of the copy must not reach them.
        """
        value = read_json(self.state)
        if not isinstance(value, dict):
            return {}
        state = {key: part for key, part in value.items() if part is None or _is_known(key, part)}
        if error := state.get("error"):  # quotes what other programs wrote, escape sequences and all
            state["error"] = {key: printable(part) if isinstance(part, str) else part for key, part in error.items()}
        told = state.get("path")
        if told is not None and told != os.fspath(self.path) and self._is_copy_of(told):
            state.update(supervisor=None, launcher=None, control=None)
        return state

    def _is_copy_of(self, path: str) -> bool:
        try:
            return not os.path.samestat(os.stat(path), os.stat(self.path))
        except (OSError, ValueError):
            return False  # moved: its supervisor notices

    def read_resolved(self) -> dict[str, Any]:
        """resolved.json, or {} when it is absent or unreadable; a recipe or origin that is no mapping is left out."""
        value = read_json(self.resolved)
        if not isinstance(value, dict):
            return {}
        return {key: part for key, part in value.items() if key not in ("recipe", "origin") or isinstance(part, dict)}


def _is_known(key: str, value: Any) -> bool:
    if key in _STATE_TYPES and (not isinstance(value, _STATE_TYPES[key]) or isinstance(value, bool)):
        return False
    if key == "last_checkpoint":
        return isinstance(value.get("step"), int)
    return key != "error" or isinstance(value.get("message"), str)


@dataclass(frozen=True)
class Workspace:
    """The folder that holds runs, the keeper's files, the cache and the logs."""

    root: Path

    @property
    def runs_dir(self) -> Path:
        return self.root / "runs"

    @property
    def keeper_dir(self) -> Path:
        return self.root / "keeper"

    @property
    def cache_dir(self) -> Path:
        return self.root / "cache"

    @property
    def logs_dir(self) -> Path:
        return self.root / "logs"

    def prepare(self) -> Workspace:
        """Make the folders.

        Raises:
            FtuiError: the place cannot be written.
        """
        try:
            for folder in (self.root, self.runs_dir, self.cache_dir, self.logs_dir):
                folder.mkdir(parents=True, exist_ok=True)
            self.keeper_dir.mkdir(mode=0o700, exist_ok=True)
            if not os.access(self.runs_dir, os.W_OK | os.X_OK):
                raise PermissionError(13, os.strerror(13))
        except OSError as error:
            raise FtuiError(
                _("the workspace cannot be written: {reason}").format(reason=error.strerror or error),
                where=str(self.root),
                fix=_("choose another place with --home DIR or FTUI_HOME, or make this one writable"),
                kind="workspace",
            ) from error
        return self

    def folders(self) -> list[RunFolder]:
        """All run folders, in no order.

        Raises:
            FtuiError: the folder that holds them is there and cannot be read: not the same as no runs.
        """
        try:
            entries = [entry for entry in os.scandir(self.runs_dir) if may_be_run(entry)]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise FtuiError(
                _("the runs cannot be listed: {reason}").format(reason=error.strerror or error),
                where=str(self.runs_dir),
                fix=_("make it readable, or choose another workspace with --home DIR or FTUI_HOME"),
                kind="workspace",
            ) from error
        return [RunFolder(Path(e.path)) for e in entries]

    def runs(self) -> list[RunFolder]:
        """All run folders, newest first."""
        return sorted(self.folders(), key=lambda run: (created(run), run.name), reverse=True)

    def find(self, name: str) -> RunFolder:
        """The run called `name` (a name, a path of a run folder, or a prefix that only one run has).

        Raises:
            UsageError: no such run, or the prefix fits several.
        """
        as_path = user_path(name)
        if (as_path.is_absolute() or "/" in name) and RunFolder(as_path).is_run():
            return RunFolder(as_path.resolve())
        exact = self.runs_dir / name
        if NAME.match(name) and RunFolder(exact).is_run():
            return RunFolder(exact)
        names = [run.name for run in self.runs() if run.is_run()]
        close = [candidate for candidate in names if name and candidate.startswith(name)]
        if len(close) == 1:
            return RunFolder(self.runs_dir / close[0])
        if close:
            raise UsageError(
                _("'{name}' fits several runs: {runs}").format(name=name, runs=", ".join(close[:5])),
                fix=_("give more of the name"),
                kind="ambiguous_run",
            )
        known = ", ".join(names[:5]) or _("none yet")
        raise UsageError(
            _("there is no run '{name}' here").format(name=name),
            where=str(self.runs_dir),
            fix=_("known runs: {runs}; `ftui runs` lists all").format(runs=known),
            kind="no_such_run",
        )

    def claim_run(self, name: str | None, stem: str, fill: Callable[[RunFolder, str], None]) -> RunFolder:
        """Make a complete run folder or none: it is filled under a hidden name and then renamed.

        Args:
            name: the run's name; None takes `stem` with the next free number.
            stem: where a number is appended.
            fill: writes the files into a folder that will have the given name.

        Raises:
            UsageError: the name is not usable or taken.
        """
        if name is not None and not NAME.match(name):
            raise UsageError(
                _("'{name}' cannot be a run's name").format(name=name),
                fix=_("use letters, digits, '.', '_' and '-', at most 100, not beginning with a dot"),
                kind="bad_run_name",
            )
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-.")[:80] or "run"
        for number in itertools.count(1):
            final = self.runs_dir / (name or f"{stem}-{number}")
            if not final.exists() and self._build(final, fill):
                return RunFolder(final)
            if name is not None:
                break
        raise UsageError(
            _("there is a run '{name}' already").format(name=name),
            where=str(self.runs_dir / str(name)),
            fix=_("choose another --name; `ftui status {name}` says how that one is").format(name=name),
            kind="run_exists",
        )

    def _build(self, final: Path, fill: Callable[[RunFolder, str], None]) -> bool:
        import shutil  # slow, and needed by the command that starts a run only

        building = self.runs_dir / f".new-{os.getpid()}-{time.time_ns()}"
        try:
            building.mkdir()
            fill(RunFolder(building), final.name)
            building.rename(final)  # fails on a folder that is not empty, and a run's never is
        except OSError as error:
            shutil.rmtree(building, ignore_errors=True)
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                return False
            raise FtuiError(
                _("the run folder cannot be made: {reason}").format(reason=error.strerror or error),
                where=str(final),
                fix=_("free space there, or choose another workspace with --home DIR"),
                kind="workspace",
            ) from error
        except BaseException:
            shutil.rmtree(building, ignore_errors=True)
            raise
        fsync_dir(self.runs_dir)
        return True


def may_be_run(entry: os.DirEntry[str]) -> bool:
    """Whether an entry of the folder of runs may be one: a folder, not hidden; what cannot be read is none."""
    try:
        return not entry.name.startswith(".") and entry.is_dir()
    except OSError:
        return False


def created(run: RunFolder) -> float:
    """When the run was made, in seconds since the epoch; the folder's own time when state.json does not say."""
    value = run.read_state().get("created")
    if isinstance(value, int | float):
        return float(value)
    try:
        return run.path.stat().st_mtime
    except OSError:
        return time.time()


def locate(home: str | os.PathLike[str] | None = None) -> Workspace:
    """The workspace: `home`, FTUI_HOME, the setting, /data/ft where writable, else ~/ftui."""
    if home:
        return Workspace(user_path(home).absolute())
    if value := os.environ.get("FTUI_HOME"):
        return Workspace(user_path(value).absolute())
    from engine import settings  # reads the user's file only where the environment did not say

    if value := settings.load().home:
        return Workspace(user_path(value).absolute())
    if DEFAULT_DATA_DISK.is_dir() and os.access(DEFAULT_DATA_DISK, os.W_OK | os.X_OK):
        return Workspace(DEFAULT_DATA_DISK)
    if not DEFAULT_DATA_DISK.exists() and os.access(DEFAULT_DATA_DISK.parent, os.W_OK | os.X_OK):
        return Workspace(DEFAULT_DATA_DISK)
    return Workspace(user_path("~/ftui"))
