"""The files of a folder, and the names beside checkpoints: links followed with care, nothing opened."""

from __future__ import annotations

import errno
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from engine.checkpoint import ledger
from engine.checkpoint.problems import Problems
from engine.text import _

DEPTH = 12
MOST = 100_000  # files of one checkpoint; beyond that something else lies in its folder
_LIKE = re.compile(r"checkpoint|ckpt", re.IGNORECASE)
_STAGING = re.compile(
    r"(\.(staging|retired|replaced|export)-.*|tmp[-_.]?checkpoint-.*|checkpoint-[0-9]+[._-](tmp|temp|partial|part|incomplete)"
    r"|\.?_?(tmp|temp|partial|incomplete)[-_.]?checkpoint.*)\Z",
    re.IGNORECASE,
)
_LINK_TEXT = re.compile(r"(\.{0,2}/[^\s:]*|\.{1,2}|[^\s:/]+/[^\s:]*|checkpoint-[0-9]{1,18})\Z")
_WORD = re.compile(r"[\w./~-]{2,}\Z")  # in the place of a checkpoint any name may be a link's text
_LINK_LIMIT = 1024
_NUMBER = re.compile(r"([0-9]{1,18})(?![0-9])")


@dataclass(frozen=True)
class File:
    """A regular file of a checkpoint."""

    path: Path
    size: int


def files(folder: Path, problems: Problems) -> dict[str, File]:
    """All regular files below `folder` by their relative names; links to folders are followed once."""
    found: dict[str, File] = {}
    waiting: list[tuple[Path, str, tuple[str, ...]]] = [(folder, "", (os.path.realpath(folder),))]
    while waiting:
        here, prefix, above = waiting.pop()
        try:
            entries = sorted(os.scandir(here), key=lambda entry: entry.name)
        except OSError as error:
            problems.add("unreadable", "error", error.strerror or str(error), prefix)
            continue
        for entry in entries:
            name = f"{prefix}{entry.name}"
            try:
                info = entry.stat()
            except OSError as error:
                _bad_entry(entry, name, error, problems)
                continue
            if stat.S_ISREG(info.st_mode):
                file = File(Path(entry.path), info.st_size)
                if len(found) < MOST and not _is_bad_link_text(file, name, above, problems):
                    found[name] = file
            elif stat.S_ISDIR(info.st_mode):
                real = os.path.realpath(entry.path)
                if entry.is_symlink() and _is_above(real, above):
                    problems.add("inner_loop", "warning", _("the link leads back to a folder above it"), name)
                elif len(above) < DEPTH:
                    waiting.append((Path(entry.path), f"{name}/", (*above, real)))
    return found


def _bad_entry(entry: os.DirEntry[str], name: str, error: OSError, problems: Problems) -> None:
    if error.errno == errno.ELOOP:
        problems.add("symlink_loop", "error", _("the link leads to itself"), name)
    elif error.errno == errno.ENOENT and entry.is_symlink():
        problems.add("dangling_symlink", "error", _("the link leads nowhere"), name)
    elif error.errno != errno.ENOENT:  # gone since: someone removes this checkpoint right now
        problems.add("unreadable", "error", error.strerror or str(error), name)


def _is_above(real: str, above: tuple[str, ...]) -> bool:
    return any(up == real or up.startswith(f"{real.rstrip('/')}/") for up in above)


def link_text(path: Path, size: int, form: re.Pattern[str] = _LINK_TEXT) -> str | None:
    """Where a regular file would lead if it is a link that lost its nature: its whole content is a path.

    Archives, git without links and many copying tools turn links into such files.
    """
    if not 0 < size <= _LINK_LIMIT:
        return None
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    return text if form.match(text) else None


def _is_bad_link_text(file: File, name: str, above: tuple[str, ...], problems: Problems) -> bool:
    """Report a file that was a link and leads nowhere or up; others speak for themselves when they are read."""
    text = link_text(file.path, file.size)
    if text is None:
        return False
    real = os.path.realpath(file.path.parent / text)
    if _is_above(real, above):
        problems.add("inner_loop", "warning", _("a link, kept as a file, that leads back to a folder above it"), name)
        return True
    if os.path.lexists(real):
        return False
    problems.add("dangling_symlink", "error", _("a link, kept as a file, that leads nowhere"), name)
    return True


def is_like_checkpoint(name: str) -> bool:
    """Whether an entry of an output folder is worth a word: a checkpoint, or something named like one."""
    return bool(_LIKE.search(name)) or bool(_STAGING.match(name)) or bool(ledger.STAGING.match(name))


def is_staging(name: str) -> bool:
    """Whether the name is that of a save, deletion or export which never ended."""
    return bool(_STAGING.match(name))


def number_in(name: str) -> int | None:
    """The step that a leftover's name speaks of."""
    match = _NUMBER.search(name)
    return int(match[1]) if match else None


def link_problem(path: Path, problems: Problems) -> bool:
    """Report what keeps `path` from being a folder; False when it is one."""
    try:
        info = path.stat()
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOENT):
            problems.add("unreadable", "error", error.strerror or str(error))
        elif not path.is_symlink():
            problems.add("missing_file", "error", _("it is gone"))
        elif error.errno == errno.ELOOP:
            _loop(str(path.readlink()), problems)
        else:
            _dangling(str(path.readlink()), problems)
        return True
    if stat.S_ISDIR(info.st_mode):
        return False
    _no_folder(path, info, problems)
    return True


def _loop(target: str, problems: Problems) -> None:
    problems.add("symlink_loop", "error", _("a link to {target}, in a circle").format(target=target))


def _dangling(target: str, problems: Problems) -> None:
    problems.add("dangling_symlink", "error", _("a link to {target}, which is not there").format(target=target))


def _no_folder(path: Path, info: os.stat_result, problems: Problems) -> None:
    """A file where a folder should be: just a file, or what became of a link."""
    here, seen = path, [path]
    target = link_text(path, info.st_size, _WORD) if stat.S_ISREG(info.st_mode) else None
    text = target
    while text is not None:
        here = Path(os.path.normpath(here.parent / text))
        if here in seen:
            _loop(str(target), problems)
            return
        seen.append(here)
        try:
            info = here.stat()
        except OSError:
            _dangling(str(target), problems)
            return
        text = link_text(here, info.st_size) if stat.S_ISREG(info.st_mode) else None
    if target is not None:
        detail = _("a link to {target}, kept as a file").format(target=target)
    else:
        detail = _("it has the name of a checkpoint and is no folder")
    problems.add("not_a_folder", "note", detail)
