"""Fetches a model into the libraries' cache: room first, files already here kept, every hash checked at the end."""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import FtuiError
from engine.files import write_json
from engine.hardware.disk import Mount
from engine.hub.remote import File, Model, explained
from engine.recipe import hub
from engine.text import _
from engine.text import gigabytes as size
from engine.workspace import Workspace

CHUNK = 1 << 20
RESERVE = 2 * 10**9  # bytes of the disk that stay free
POLL_S = 0.25
FORMAT = 1


@dataclass(frozen=True)
class Fetched:
    """A model on this machine: its folder, what had to be fetched (bytes), and how long that took (seconds)."""

    path: Path
    commit: str
    fetched: int
    seconds: float


def repository(name: str) -> Path:
    """The folder of a model in the cache."""
    return hub.cache() / ("models--" + name.replace("/", "--"))


def missing(model: Model) -> list[File]:
    """The files that are not in the cache in their full size."""
    snapshot = repository(model.name) / "snapshots" / model.commit
    found = []
    for file in model.files:
        try:
            here = (snapshot / file.path).stat().st_size
        except OSError:
            here = -1
        if here != file.size:
            found.append(file)
    return found


def check_room(model: Model, files: list[File]) -> None:
    """Refuse a download that does not fit.

    Raises:
        FtuiError: exit code 3, with another disk that has the room where there is one.
    """
    from engine.hardware import disk

    need = sum(file.size for file in files)
    place = disk.existing(hub.cache())
    free = shutil.disk_usage(place).free
    if need + RESERVE <= free or not need:
        return
    fix = _("free {bytes}, or set HF_HOME to a folder on a larger disk").format(bytes=size(need + RESERVE - free))
    if (other := roomiest(need + RESERVE)) is not None:
        fix = _("set HF_HOME={path}: that disk has {free} free").format(
            path=Path(other.point) / "huggingface", free=size(shutil.disk_usage(other.point).free)
        )
    raise FtuiError(
        _("{name} needs {need}, and {place} has {free} free").format(
            name=model.name, need=size(need), place=hub.cache(), free=size(free)
        ),
        where=str(hub.cache()),
        fix=fix,
        exit_code=3,
        kind="no_room",
    )


def roomiest(need: int) -> Mount | None:
    """The local, writable disk with the most room, where that is enough."""
    from engine.hardware import disk

    best, most = None, need - 1
    for mount in disk.mounts():
        if mount.read_only or mount.fs in disk.MEMORY or not mount.device.startswith("/dev/"):
            continue
        try:
            free = shutil.disk_usage(mount.point).free if os.access(mount.point, os.W_OK) else 0
        except OSError:
            continue
        if Path(mount.point).is_dir() and free > most:
            best, most = mount, free
    return best


def fetch(
    model: Model, workspace: Workspace, progress: Callable[[int, int], None] = lambda done, total: None
) -> Fetched:
    """Bring a model here and prove that it is what the hub has.

    Args:
        model: as the hub described it.
        workspace: keeps the record of revision and hashes (`models/`).
        progress: called about four times a second with (bytes here, bytes in all).

    Raises:
        FtuiError: no room, the hub failed, or a file has another hash than the hub says.
    """
    from huggingface_hub import snapshot_download

    began = time.monotonic()
    todo = missing(model)
    check_room(model, todo)
    _sweep(model.name)
    if todo:
        with _watched(model, todo, progress), explained(model.name, model.revision):
            snapshot_download(
                model.name,
                revision=model.commit,
                cache_dir=hub.cache(),
                allow_patterns=[_literal(file.path) for file in model.files],
                tqdm_class=_silent(),
            )
    snapshot = repository(model.name) / "snapshots" / model.commit
    verify(model, snapshot, {file.path for file in todo}, workspace)
    _name_revision(model)
    return Fetched(snapshot, model.commit, sum(file.size for file in todo), time.monotonic() - began)


def _literal(path: str) -> str:
    """A path as an fnmatch pattern that matches itself alone."""
    return "".join(f"[{character}]" if character in "*?[" else character for character in path)


def _name_revision(model: Model) -> None:
    """Let the revision name this commit, as the libraries expect of a download by name."""
    if model.revision != model.commit:
        reference = repository(model.name) / "refs" / model.revision
        reference.parent.mkdir(parents=True, exist_ok=True)
        reference.write_text(model.commit)


def verify(model: Model, snapshot: Path, fresh: set[str], workspace: Workspace) -> None:
    """Hash what was fetched (and what no record vouches for) and write the record.

    Raises:
        FtuiError: a file is not the one that the hub described; its copy here is removed.
    """
    record = workspace.root / "models" / f"{model.name.replace('/', '--')}.json"
    known = vouched(record, model.commit)
    hashes = {}
    for file in model.files:
        path = snapshot / file.path
        stamp = _stamp(path)
        before = known.get(file.path)
        if file.path not in fresh and before is not None and before["stamp"] == stamp:
            hashes[file.path] = before
            continue
        sha256, blob = _hashes(path)
        if (file.sha256 or sha256) != sha256 or (file.sha256 is None and (file.blob or blob) != blob):
            path.resolve().unlink(missing_ok=True)
            path.unlink(missing_ok=True)
            raise FtuiError(
                _("{file} arrived damaged: its hash is not the one that the hub says").format(file=file.path),
                where=str(path),
                fix=_("run the command again: that file alone is fetched anew"),
                kind="hash_mismatch",
            )
        hashes[file.path] = {"size": file.size, "sha256": sha256, "stamp": stamp}
    record.parent.mkdir(parents=True, exist_ok=True)
    document = {"format": FORMAT, "model": model.name, "revision": model.revision, "commit": model.commit,
                "license": model.license, "path": str(snapshot), "time": time.time(), "files": hashes}  # fmt: skip
    write_json(record, document)


def vouched(record: Path, commit: str) -> dict[str, dict[str, object]]:
    """What an earlier download proved of this commit's files."""
    from engine.files import read_json

    document = read_json(record)
    files = document.get("files") if isinstance(document, dict) and document.get("commit") == commit else None
    if not isinstance(files, dict):
        return {}
    return {path: entry for path, entry in files.items() if isinstance(entry, dict) and "stamp" in entry}


def _stamp(path: Path) -> list[int]:
    try:
        stat = path.stat()
    except OSError as error:
        raise FtuiError(
            _("{path} is not there after the download").format(path=path),
            where=str(path),
            fix=_("run the command again"),
            kind="incomplete",
        ) from error
    return [stat.st_size, stat.st_mtime_ns]


def _hashes(path: Path) -> tuple[str, str]:
    """sha256, and git's name of the content (sha1 with a header), in one read."""
    sha256 = hashlib.sha256()
    git = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            sha256.update(chunk)
            git.update(chunk)
    return sha256.hexdigest(), git.hexdigest()


def _sweep(name: str) -> None:
    """Remove what downloads that were killed left behind: the library begins such a file anew."""
    for path in (repository(name) / "blobs").glob("*.incomplete"):
        try:
            if time.time() - path.stat().st_mtime > 600:  # a download of another process writes more often
                path.unlink()
        except OSError:
            continue


def _silent() -> Any:
    """A progress bar that says nothing: we count what is on the disk."""
    from huggingface_hub.utils.tqdm import tqdm

    class Silent(tqdm):  # type: ignore[type-arg, unused-ignore]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, "disable": True})  # type: ignore[no-untyped-call, unused-ignore]

    return Silent


@contextmanager
def _watched(model: Model, todo: list[File], progress: Callable[[int, int], None]) -> Iterator[None]:
    """Report the bytes on the disk while the library fetches."""
    total, over = model.bytes, threading.Event()
    kept = total - sum(file.size for file in todo)

    def watch() -> None:
        while not over.wait(POLL_S):
            progress(min(kept + sum(_arrived(model, file) for file in todo), total), total)

    progress(kept, total)
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    progress(total, total)


def _arrived(model: Model, file: File) -> int:
    """Bytes of a file on the disk, whole or on their way."""
    blobs, name = repository(model.name) / "blobs", file.sha256 or file.blob or ""
    here = 0
    for path in (blobs / name, *blobs.glob(f"{name}*.incomplete")):
        try:
            here += path.stat().st_size
        except OSError:
            continue
    return min(here, file.size)
