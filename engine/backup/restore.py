"""From the remote back to a folder: the manifest first, room checked, every file hashed before it gets its name.

A restore can be killed anywhere and asked for again: what is here and right by its hash is not fetched again. A run
appears under its name only when it is whole. What is missing or altered there is an error, whatever rclone's exit code.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.backup.capsule import Plan, Wanted, plan
from engine.backup.items import GROWING
from engine.backup.policy import check_remote
from engine.backup.progress import Progress
from engine.backup.rclone import Daemon, RcloneError
from engine.backup.remote import Remote
from engine.errors import DoesNotFit, FtuiError, GateError, UsageError
from engine.files import fsync_dir, sha256_file, write_atomic, write_json
from engine.text import _, gigabytes
from engine.workspace import NAME, RunFolder, Workspace

PARTIAL = ".partial"
TRANSFERS = 4
TRIES = 5
MARGIN = 64 << 20
GIVE_UP_S = 900.0


def destination(workspace: Workspace, plan: Plan, directory: Path | None) -> tuple[Path, Path]:
    """Where it is filled, and what it is called when it is whole.

    Raises:
        UsageError: something else is there already.
    """
    name = plan.run or plan.remote.rstrip("/").rpartition("/")[2]
    if directory is None and not NAME.match(name):
        raise UsageError(
            _("'{name}' cannot be a run's name").format(name=name[:80]), fix=_("name the folder to restore to: DIR")
        )
    final = directory.absolute() if directory else workspace.runs_dir / name
    building = final.with_name(f".restore-{final.name}")
    if final.exists() and (not final.is_dir() or any(final.iterdir())):
        raise UsageError(
            _("{path} is there already, and nothing is overwritten").format(path=final),
            fix=_("name another folder: `ftui backup restore {remote} DIR`").format(remote=plan.remote),
            kind="exists",
        )
    return building, final


@dataclass
class Restore:
    """One restore; `on_progress` is called several times a second."""

    remote: Remote
    plan: Plan
    building: Path
    final: Path
    progress: Progress
    on_progress: Callable[[Progress], None] | None = None

    def go(self) -> dict[str, Any]:
        """Fetch, check, and give the folder its name.

        Raises:
            DoesNotFit: the disk has too little room.
            GateError: something is missing or altered there; what was fetched stays for the next try.
            FtuiError: the remote does not answer any more.
        """
        started = time.monotonic()
        self.building.mkdir(parents=True, exist_ok=True)
        missing = self._missing()
        self._make_room(missing)
        problems = self._fetch(missing)
        if problems:
            raise GateError(
                _("not restored, {n} files are missing or altered there: {files}").format(
                    n=len(problems), files="; ".join(problems[:5])
                ),
                where=self.plan.remote,
                fix=_("restore another step with --step; what was fetched is kept in {folder}").format(
                    folder=self.building
                ),
                kind="damaged_backup",
            )
        self._finish()
        return {
            **self.plan.to_json(),
            "path": str(self.final),
            "fetched_bytes": sum(wanted.size for wanted in missing),
            "seconds": round(time.monotonic() - started, 3),
        }

    def _missing(self) -> list[Wanted]:
        """What is not here yet. What is here is hashed, not believed."""
        missing = []
        self.progress.total, self.progress.files_total = self.plan.bytes, len(self.plan.files)
        self.progress.doing = "hash"
        for wanted in self.plan.files:
            target = self.building / wanted.target
            try:
                right = target.stat().st_size == wanted.size and sha256_file(target) == wanted.sha256
            except OSError:
                right = False
            if right:
                self._count(wanted)
            else:
                target.unlink(missing_ok=True)
                missing.append(wanted)
            self._tell()
        return missing

    def _make_room(self, missing: list[Wanted]) -> None:
        need = sum(wanted.size for wanted in missing) + MARGIN
        free = shutil.disk_usage(self.building).free
        if need > free:
            raise DoesNotFit(
                _("not enough room: {need} are to be restored, {free} are free").format(
                    need=gigabytes(need), free=gigabytes(free)
                ),
                where=str(self.building),
                fix=_("restore one checkpoint with --step N, or to another disk with DIR"),
                kind="no_room",
            )

    def _fetch(self, missing: list[Wanted]) -> list[str]:
        from collections import deque
        from concurrent.futures import Future, ThreadPoolExecutor

        self.progress.doing = "download"
        waiting = deque((wanted, 0, 0.0) for wanted in sorted(missing, key=lambda w: (w.size > 1 << 20, w.target)))
        problems: list[str] = []
        flying: dict[Future[str | None], tuple[Wanted, int]] = {}
        with ThreadPoolExecutor(TRANSFERS, "fetch") as pool:
            while waiting or flying:
                now = time.monotonic()
                for _turn in range(len(waiting)):
                    if len(flying) >= TRANSFERS:
                        break
                    wanted, tries, at = waiting.popleft()
                    if at > now:
                        waiting.append((wanted, tries, at))
                    else:
                        flying[pool.submit(self._one, wanted)] = (wanted, tries)
                for future in [future for future in flying if future.done()]:
                    wanted, tries = flying.pop(future)
                    try:
                        problem = future.result()
                    except RcloneError as error:
                        if error.cause == "auth" or error.cause == "disk_full":
                            waiting.clear()
                            raise
                        self.remote.daemon.ensure()
                        if error.cause in ("busy", "network") and self.progress.still_s > GIVE_UP_S:
                            raise
                        if error.cause == "other" and tries >= TRIES:
                            problem = error.text
                        else:
                            self.progress.reason = error.text
                            waiting.append((wanted, tries + 1, now + min(30.0, 0.5 * 2.0 ** min(tries, 6))))
                            continue
                    if problem and tries < 1:  # once more: it may have been torn on the way
                        waiting.append((wanted, tries + 1, now))
                    elif problem:
                        problems.append(f"{wanted.source}: {problem}")
                    else:
                        self._count(wanted)
                self.progress.in_flight = sum(self._partial(wanted) for wanted, _tries in flying.values())
                self._tell()
                time.sleep(0.005 if flying and all(w.size < 1 << 20 for w, _t in flying.values()) else 0.05)
        return sorted(problems)

    def _one(self, wanted: Wanted) -> str | None:
        """Fetch one file; what is wrong with it, or None."""
        target = self.building / wanted.target
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(target.name + PARTIAL)
        try:
            self.remote.job(
                "operations/copyfile",
                srcFs=self.remote.fs(),
                srcRemote=wanted.source,
                dstFs=str(partial.parent),
                dstRemote=partial.name,
                _config={"IgnoreTimes": True, "Inplace": True},
            )
        except RcloneError as error:
            if error.cause != "missing":
                raise
            return self._from_manifest(wanted, target) or _("missing")
        if not partial.is_file():
            return self._from_manifest(wanted, target) or _("missing")
        if wanted.source in GROWING and partial.stat().st_size > wanted.size:
            os.truncate(partial, wanted.size)  # it had grown there before its manifest followed
        if partial.stat().st_size != wanted.size or sha256_file(partial) != wanted.sha256:
            partial.unlink(missing_ok=True)
            return self._from_manifest(wanted, target) or _("altered")
        _settle(partial, target)
        return None

    def _from_manifest(self, wanted: Wanted, target: Path) -> str | None:
        """A file that was replaced there after this manifest was written stands in it."""
        import hashlib

        if wanted.content is None:
            return _("missing or altered")
        data = wanted.content.encode()
        if hashlib.sha256(data).hexdigest() != wanted.sha256:
            return _("altered")
        write_atomic(target, data)
        return None

    def _partial(self, wanted: Wanted) -> int:
        target = self.building / wanted.target
        try:
            return min(wanted.size, target.with_name(target.name + PARTIAL).stat().st_size)
        except OSError:
            return 0

    def _count(self, wanted: Wanted) -> None:
        self.progress.done += wanted.size
        self.progress.files_done += 1

    def _tell(self) -> None:
        self.progress.look()
        if self.on_progress:
            self.on_progress(self.progress)

    def _finish(self) -> None:
        for name, data in self.plan.manifests.items():
            if not name.startswith(("BACKUP.json", "final/")):  # those are the copy's own, not the run's
                write_atomic(self.building / name, data)  # last: only now is the checkpoint one that may be resumed
        for left in self.building.rglob(f"*{PARTIAL}"):
            left.unlink()
        if self.plan.run is not None:
            _adopt(self.building, self.final, self.plan)
        for folder in [self.building, *(path for path in self.building.rglob("*") if path.is_dir())]:
            fsync_dir(folder)
        if self.final.is_dir():
            self.final.rmdir()
        self.building.rename(self.final)
        fsync_dir(self.final.parent)


def _settle(partial: Path, target: Path) -> None:
    with open(partial, "rb") as file:
        os.fsync(file.fileno())
    partial.rename(target)


def _adopt(building: Path, final: Path, plan: Plan) -> None:
    """Make the copy a run of this machine: its processes are gone, its files are here now."""
    folder = RunFolder(building)
    state = folder.read_state()
    if state:
        newest = max(plan.checkpoints, default=None)
        if state.get("state") != "done" or "final" not in plan.others:  # an earlier step can be gone on from
            state.update(state="stopped", step=state.get("step") if newest is None else newest)
        state.update(supervisor=None, launcher=None, control=None, path=str(final), restored=time.time())
        if newest is not None:
            state["last_checkpoint"] = {"step": newest, "path": f"checkpoints/checkpoint-{newest}", "time": time.time()}
        write_json(folder.state, state)
    document = folder.read_resolved()
    recipe = document.get("recipe")
    if isinstance(recipe, dict):
        here = {original: str(final / name) for name, original in plan.named.items() if not Path(original).exists()}
        document["recipe"] = {
            key: here.get(value, value) if isinstance(value, str) else value for key, value in recipe.items()
        }
        write_json(folder.resolved, document)
    for path in (folder.logs, folder.data, folder.checkpoints):
        path.mkdir(exist_ok=True)


def restore(
    workspace: Workspace,
    daemon: Daemon,
    path: str,
    directory: Path | None = None,
    *,
    step: int | None = None,
    everything: bool = False,
    dry_run: bool = False,
    on_plan: Callable[[Plan], None] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> dict[str, Any]:
    """Bring a run (or one checkpoint) back from REMOTE:PATH; what was done, as a document.

    Raises:
        FtuiError: see `Restore.go`, `plan` and `destination`.
    """
    remote = Remote(daemon, check_remote(path))
    try:
        made = plan(remote, step=step, everything=everything)
        building, final = destination(workspace, made, directory)
        if on_plan:
            on_plan(made)
        if dry_run:
            return {**made.to_json(), "path": str(final), "fetched_bytes": 0, "seconds": 0.0}
        progress = Progress(building / ".progress.json", path)
        return Restore(remote, made, building, final, progress, on_progress).go()
    except FtuiError:
        raise
    except OSError as error:
        raise FtuiError(
            _("not restored: {reason}").format(reason=error.strerror or error), where=error.filename, kind="disk"
        ) from None
    finally:
        remote.close()
