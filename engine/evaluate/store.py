"""What a model has answered so far: one file of JSON lines a model, kept between evaluations."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import orjson

from engine.files import read_json, sha256_file, write_all

WHOLE = 64 << 20  # bytes up to which a file is hashed in full
SAMPLES, SAMPLE = 64, 4096
WEIGHTS = (".safetensors", ".bin", ".gguf")


# What a result holds: a loss, an answer, or what a judge said.
KINDS: tuple[dict[str, tuple[type, ...]], ...] = (
    {"key": (str,), "nll": (int, float), "tokens": (int,), "correct": (int,)},
    {"key": (str,), "text": (str,), "tokens": (int,), "ids": (list,)},
    {"key": (str,), "said": (str, type(None))},
)


def _is_result(value: Any) -> bool:
    """Whether a line is a result: a damaged one would change what is measured."""
    return isinstance(value, dict) and any(
        all(name in value and type(value[name]) in types for name, types in kind.items()) for kind in KINDS
    )


class Store:
    """Results by key. A line is one write(2) at the end of the file, so that two evaluations may share a store."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.results: dict[str, dict[str, Any]] = {}
        self._fd = -1
        try:
            content = path.read_bytes()
        except OSError:
            content = b""
        for line in content.splitlines():
            try:
                value = orjson.loads(line)
            except ValueError:
                continue  # torn by a kill; it is computed again
            if _is_result(value):
                self.results[value["key"]] = value

    def add(self, result: dict[str, Any]) -> None:
        """Keep a result; it has its key in `key`."""
        if self._fd < 0:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            end = os.fstat(self._fd).st_size
            if end and os.pread(self._fd, 1, end - 1) != b"\n":
                write_all(self._fd, b"\n")  # what a kill left of a line must not take the next one with it
        write_all(self._fd, orjson.dumps(result, option=orjson.OPT_APPEND_NEWLINE))
        self.results[result["key"]] = result

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def digest(*parts: Any) -> str:
    """A short hash of values that JSON can hold."""
    return hashlib.sha256(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]


def fingerprint(folder: Path) -> str:
    """What a folder's weights are, by their content.

    A sealed checkpoint knows its hashes. Else small files are hashed whole; of large ones size, time, the header and
    blocks spread over the file: a change of a weight shows in one of them.
    """
    manifest = read_json(folder / "MANIFEST.json")
    known = manifest.get("files", {}) if isinstance(manifest, dict) else {}
    parts = []
    for path in sorted(folder.iterdir()):
        if not path.is_file() or not (path.name.endswith(WEIGHTS) or path.name.endswith("config.json")):
            continue
        entry = known.get(path.name)
        size = path.stat().st_size
        if isinstance(entry, dict) and entry.get("size") == size and entry.get("sha256"):
            parts.append((path.name, entry["sha256"]))
        elif size <= WHOLE:
            parts.append((path.name, sha256_file(path)))
        else:
            parts.append((path.name, _sampled(path, size)))
    return digest(parts)


def _sampled(path: Path, size: int) -> str:
    content = hashlib.sha256(f"{size} {path.stat().st_mtime_ns}".encode())
    with open(path, "rb") as file:
        content.update(file.read(1 << 20))
        for number in range(SAMPLES):
            file.seek(number * (size - SAMPLE) // SAMPLES)
            content.update(file.read(SAMPLE))
    return content.hexdigest()
