"""Which files a name stands for, and their bytes: unpacked, as UTF-8, with what was odd about them."""

from __future__ import annotations

import bz2
import codecs
import glob
import gzip
import io
import lzma
import os
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from engine.data import places
from engine.data.tally import Tally
from engine.errors import UsageError
from engine.files import user_path
from engine.text import _
from engine.workspace import locate

PLAIN = (".jsonl", ".ndjson", ".json", ".csv", ".tsv")
PACKED = {".gz": "gzip", ".zst": "zstd", ".bz2": "bzip2", ".xz": "xz"}
SUFFIXES = (*PLAIN, *(plain + packed for plain in PLAIN for packed in PACKED), ".parquet")
PIECE = 1 << 20
HEAD = 1 << 18
MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz"}
ARCHIVES = {b"PK\x03\x04": "zip", b"7z\xbc\xaf\x27\x1c": "7z", b"Rar!": "rar"}
OTHER = {
    b"%PDF": "PDF", b"<!doctype html": "HTML", b"<html": "HTML", b"<?xml": "XML", b"ARROW1": "Arrow",
    b"version https://git-lfs": "a pointer of Git LFS, not the data itself (git lfs pull)", b"\x80\x04\x95": "pickle",
    b"SQLite format 3": "SQLite", b"\x89PNG": "PNG", b"\xff\xd8\xff": "JPEG", b"\x7fELF": "ELF",
}  # fmt: skip
# Longest first: the mark of UTF-32-LE begins with that of UTF-16-LE.
MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32-LE",
    codecs.BOM_UTF32_BE: "UTF-32-BE",
    codecs.BOM_UTF8: "UTF-8",
    codecs.BOM_UTF16_LE: "UTF-16-LE",
    codecs.BOM_UTF16_BE: "UTF-16-BE",
}
DAMAGED = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)


class Unreadable(Exception):
    """The file ends here for the reader; the tally says why."""


def resolve(names: list[str], cache: Path | None = None) -> list[Path]:
    """The files that names stand for: files, folders (all data files in them), globs, and what must be fetched first.

    Args:
        names: as a user writes them.
        cache: where files of remotes go; None takes the workspace's.

    Raises:
        UsageError: a name stands for nothing that can be read.
        FtuiError: it is far away and could not be fetched.
    """
    found: dict[Path, None] = {}
    for name in names:
        far = places.is_far(name)
        path = places.fetch(name, cache or locate().cache_dir, SUFFIXES) if far else user_path(name)
        try:
            files = _files_of(path)
            if name.startswith(places.HUB):
                files = _of_hub(name, path, files)
        except OSError as error:
            raise cannot_read(path, error) from error
        if not files:
            raise UsageError(
                _("there is no data at this path"),
                where=name,
                fix=_("give a file, a folder or a glob of: {suffixes}").format(suffixes=" ".join(PLAIN) + " .parquet"),
                kind="no_data",
            )
        found.update(dict.fromkeys(files))
    return list(found)


def _of_hub(name: str, path: Path, files: list[Path]) -> list[Path]:
    """Of a data set's files those that were asked for: by a glob, or all that are there to train on."""
    inside = name.removeprefix(places.HUB).removeprefix("datasets/").split("/", 2)[2:]
    if inside and set("*?[") & set(inside[0]):
        return [file for file in files if file.relative_to(path).match(inside[0])]
    return files if inside else places.to_train_on(files, path)


def _files_of(path: Path) -> list[Path]:
    if path.is_dir():
        inside = (Path(folder) / name for folder, _folders, names in os.walk(path) for name in names)
        return sorted(file for file in inside if file.name.lower().endswith(SUFFIXES) and file.is_file())
    if os.path.lexists(path):
        return [path]
    return [Path(file) for file in sorted(glob.glob(str(path), recursive=True)) if Path(file).is_file()]  # noqa: PTH207


def cannot_read(path: Path, error: OSError) -> UsageError:
    """The error of a file that the system does not give."""
    return UsageError(
        _("the data cannot be read: {reason}").format(reason=error.strerror or error),
        where=str(path),
        fix=_("check the path and its permissions"),
        kind="unreadable",
    )


class Opened:
    """An open data file: its first bytes and, after them, all its bytes in pieces, unpacked and as UTF-8.

    Raises:
        UsageError: it is no regular file, or may not be read.
        Unreadable: there is nothing to read in it; the tally says what it is.
    """

    def __init__(self, path: Path, tally: Tally) -> None:
        self.path = path
        self.tally = tally
        try:
            self._before = os.stat(path)
            if not stat.S_ISREG(self._before.st_mode):
                raise UsageError(
                    _("this is not a regular file: a check reads it more than once"),
                    where=str(path),
                    fix=_("write the data to a file first"),
                    kind="not_a_file",
                )
            self._raw: IO[bytes] = open(path, "rb")  # noqa: SIM115 (closed by close)
        except OSError as error:
            raise cannot_read(path, error) from error
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        start = self._raw.read(16)
        self._raw.seek(0)
        if not start:
            self._refuse("empty_file")
        self.is_parquet = start.startswith(b"PAR1")
        self.packing = next((name for magic, name in MAGIC.items() if start.startswith(magic)), None)
        for magic, name in ARCHIVES.items():
            if start.startswith(magic):
                self._refuse("compressed", name, "archive")
        suffix = self.path.suffix.lower()
        if self.packing and PACKED.get(suffix) != self.packing:
            self.tally.add("compressed", None, self.packing)
        elif not self.packing and suffix in PACKED:
            self.tally.add("compressed", None, PACKED[suffix], "not")
        self._stream = _unpacked(self._raw, self.packing, self.path)
        self.suffix = Path(self.path.stem).suffix.lower() if suffix in PACKED else suffix
        if self.is_parquet:
            self.head = b""
            return
        self.head = self._read(HEAD)
        if not self.head:
            self._refuse("empty_file")
        self.encoding, self._skip = _encoding(self.head)
        if self.encoding == "UTF-8" and self._skip:
            self.tally.add("bom", 1)
        elif self.encoding != "UTF-8":
            self.tally.add("encoding", 1, self.encoding, "utf", byte_offset=0)
        else:
            self._not_rows(self.head)
        if self.encoding != "UTF-8":
            self.text_head = self.head[self._skip :].decode(self.encoding, "replace").encode()
        else:
            self.text_head = self.head[self._skip :]
        self.old_mac = b"\r" in self.text_head and b"\n" not in self.text_head
        if self.old_mac:
            self.text_head = self.text_head.replace(b"\r", b"\n")
            self.tally.add("line_endings", None, subtype="cr")
        if not self.text_head.strip() and len(self.head) < HEAD:
            self._refuse("empty_file")

    def _not_rows(self, head: bytes) -> None:
        """Refuse what is no text of rows, by its own name where that is known."""
        for magic, name in OTHER.items():
            if head.lstrip()[: len(magic)].lower() == magic.lower():
                self._refuse("binary", name)
        start = head[:4096]
        if start.count(0) > max(2, len(start) // 100) and head.lstrip()[:1] not in (b"{", b"["):
            self._refuse("binary", _("binary data"))

    def _refuse(self, kind: str, value: str = "", subtype: str = "") -> None:
        self.tally.add(kind, None, value, subtype)
        raise Unreadable

    def _read(self, size: int) -> bytes:
        try:
            return self._stream.read(size)
        except DAMAGED as error:
            self.tally.add("compressed", None, str(error), "damaged")
            raise Unreadable from error
        except OSError as error:
            if self.packing:  # bz2 says OSError where the others have an error of their own
                self.tally.add("compressed", None, str(error), "damaged")
                raise Unreadable from error
            raise cannot_read(self.path, error) from error
        except Exception as error:
            if type(error).__name__ == "ZstdError":
                self.tally.add("compressed", None, str(error), "damaged")
                raise Unreadable from error
            raise

    @property
    def skipped(self) -> int:
        """Bytes of the byte order mark: offsets of a UTF-8 file count from before it."""
        return self._skip

    def pieces(self) -> Iterator[bytes]:
        """The content from its beginning (a byte order mark left out) as UTF-8.

        Raises:
            Unreadable: the packed data is damaged; the tally says so.
        """
        decoder = None if self.encoding == "UTF-8" else codecs.getincrementaldecoder(self.encoding)("replace")
        piece = self.head[self._skip :]
        while piece:
            text = decoder.decode(piece).encode() if decoder else piece
            yield text.replace(b"\r", b"\n") if self.old_mac else text
            piece = self._read(PIECE)
        if decoder and (rest := decoder.decode(b"", True)):
            yield rest.encode()

    def close(self) -> None:
        """Close the file, and say so when it was changed meanwhile."""
        try:
            after = os.stat(self.path)
            same = (after.st_size, after.st_mtime_ns, after.st_ino) == (
                self._before.st_size,
                self._before.st_mtime_ns,
                self._before.st_ino,
            )
        except OSError:
            same = False
        if not same:
            self.tally.add("file_changed", None)
        self._raw.close()


def _unpacked(raw: IO[bytes], packing: str | None, path: Path) -> IO[bytes]:
    if packing == "gzip":
        return gzip.GzipFile(fileobj=raw, mode="rb")  # type: ignore[return-value]
    if packing == "bzip2":
        return bz2.BZ2File(raw)
    if packing == "xz":
        return lzma.LZMAFile(raw)
    if packing == "zstd":
        try:
            import zstandard
        except ImportError as error:
            raise UsageError(
                _("zstd data needs the package zstandard"),
                where=str(path),
                fix=_("pip install zstandard, or unpack the file first: zstd -d FILE"),
                kind="missing_package",
            ) from error
        return io.BufferedReader(_Zstd(raw, zstandard.ZstdDecompressor(max_window_size=2**31)), PIECE)
    return raw


class _Zstd(io.RawIOBase):
    """Unpacks zstd frames; unlike the library's own reader it does not take a cut-off file for a whole one."""

    def __init__(self, raw: IO[bytes], decompressor: Any) -> None:
        self._raw = raw
        self._decompressor = decompressor
        self._frame: Any = None
        self._ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            packed = self._frame.unused_data if self._frame is not None and self._frame.eof else b""
            packed = packed or self._raw.read(1 << 16)
            if not packed:
                if self._frame is not None and not self._frame.eof:
                    raise EOFError("zstd frame ends too early")
                return 0
            if self._frame is None or self._frame.eof:
                self._frame = self._decompressor.decompressobj()
            self._ready = self._frame.decompress(packed)
        size = min(len(buffer), len(self._ready))
        buffer[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size


def _encoding(head: bytes) -> tuple[str, int]:
    """The encoding that the first bytes speak of, and the length of its mark."""
    for mark, name in MARKS.items():
        if head.startswith(mark):
            return name, len(mark)
    # Without a mark: a JSON or CSV text begins with ASCII, so UTF-16 has a zero in every other byte there.
    start = head[:64]
    if len(start) >= 4:
        even, odd = start[0::2].count(0), start[1::2].count(0)
        half = len(start) // 2
        if odd > half * 0.8 and even == 0:
            return "UTF-16-LE", 0
        if even > half * 0.8 and odd == 0:
            return "UTF-16-BE", 0
    return "UTF-8", 0
