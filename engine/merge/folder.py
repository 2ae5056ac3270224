"""The merged model's folder: filled under a hidden name, sealed by a rename, nothing half-written ever."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from engine.errors import DoesNotFit, FtuiError, UsageError
from engine.files import fsync_dir
from engine.text import _, gigabytes

_WEIGHTS = (
    ".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".pt", ".pth", ".ckpt", ".gguf", ".h5",
    ".msgpack", ".onnx", ".onnx_data", ".pickle", ".pkl", ".npz",
)  # fmt: skip
_TOKENIZER = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "vocab.txt", "merges.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "tekken.json",
)  # fmt: skip
_TEMPLATES = ("chat_template.jinja", "chat_template.json")
_NOT_TAKEN = ("config.json", "readme.md", "adapter_config.json", "trainer_state.json", "manifest.json")
_LARGEST = 256 * 1024 * 1024  # of a file that is no weights


def check(out: Path, inputs: list[Path]) -> None:
    """Whether the output may have this place.

    Raises:
        UsageError: something is there already, or it lies inside what is read.
    """
    if os.path.lexists(out) and not (out.is_dir() and not out.is_symlink() and not any(out.iterdir())):
        raise UsageError(
            _("{path} is there already, and nothing is overwritten").format(path=out),
            where=str(out),
            fix=_("choose another --out"),
            kind="exists",
        )
    real = Path(os.path.realpath(out))
    for folder in inputs:
        source = Path(os.path.realpath(folder))
        if real == source or source in real.parents:
            raise UsageError(
                _("{path} lies inside {folder}, which is read").format(path=out, folder=folder),
                where=str(out),
                fix=_("choose another --out"),
                kind="inside",
            )


def require_room(out: Path, need: int) -> None:
    """Free space first.

    Raises:
        DoesNotFit: too little of it.
    """
    place = out
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < need:
        raise DoesNotFit(
            _("the merged model takes {need}, {free} are free").format(need=gigabytes(need), free=gigabytes(free)),
            where=str(place),
            fix=_("free space there, or choose another --out"),
            kind="disk_full",
        )


@contextlib.contextmanager
def staging(out: Path) -> Iterator[Path]:
    """A hidden folder beside `out`; what is left in it at the end is removed.

    It is locked while it is filled: one that nobody holds was left by a merge that was killed, and is removed.

    Raises:
        FtuiError: it cannot be made, or another merge writes there.
    """
    folder = out.parent / f".merge-{out.name}"
    fd = None
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        if folder.is_dir() and not folder.is_symlink():
            fd = _lock(folder, out)
            shutil.rmtree(folder)
            os.close(fd)
            fd = None
        folder.mkdir()
        fd = _lock(folder, out)
    except OSError as error:
        if fd is not None:
            os.close(fd)
        raise FtuiError(
            _("the merged model cannot be written: {reason}").format(reason=error.strerror or error),
            where=str(out.parent),
            fix=_("choose another --out"),
            kind="unwritable",
        ) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(fd)


def _lock(folder: Path, out: Path) -> int:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise UsageError(
            _("another merge writes to {path}").format(path=out),
            where=str(folder),
            fix=_("wait for it, or choose another --out"),
            kind="busy",
        ) from error
    return fd


def seal(folder: Path, out: Path) -> None:
    """Make everything durable and give it its name."""
    for path in folder.iterdir():
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    fsync_dir(folder)
    folder.rename(out)  # over an empty folder it succeeds, over anything else it fails
    fsync_dir(out.parent)


def bring_along(base: Path, adapter: Path, folder: Path) -> list[str]:
    """Copy what belongs to a model besides its weights; the adapter's tokenizer and template go before the base's."""
    taken = []
    own_tokenizer = any((adapter / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json"))
    own_template = own_tokenizer and any((adapter / name).is_file() for name in _TEMPLATES)
    for path in sorted(base.iterdir()):
        replaced = (own_tokenizer and path.name in _TOKENIZER) or (own_template and path.name in _TEMPLATES)
        if not replaced and _comes(path):
            _copy(path, folder / path.name)
            taken.append(path.name)
    for path in sorted(adapter.iterdir()):
        mine = path.name in (*_TOKENIZER, *_TEMPLATES) or path.suffix == ".model" or path.name.endswith("tokens.json")
        if mine and path.is_file():
            _copy(path, folder / path.name)
            taken.append(path.name)
    if (adapter / "generation_config.json").is_file():
        _copy(adapter / "generation_config.json", folder / "generation_config.json")
    return taken


def _comes(path: Path) -> bool:
    name = path.name.lower()
    if name.startswith(".") or name in _NOT_TAKEN or name.endswith(_WEIGHTS) or name.startswith("adapter_"):
        return False
    return path.is_file() and path.stat().st_size <= _LARGEST


def _copy(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    shutil.copyfile(source, target)  # the content, where the base is a hub snapshot of links
