"""Tokens on the disk: a scratch file that rows are appended to, and the Arrow files that the ranks map.

Memory does not grow with the data: of each row only its length and its hash are kept.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from engine.files import write_json
from engine.train.tokenize.packing import Numbers, Sequences

BATCH_TOKENS = 1 << 20  # tokens of one Arrow batch
Columns = Mapping[str, tuple[NDArray[np.int32], NDArray[np.int64]]]  # values one after another, lengths of the rows


class Scratch:
    """Columns of numbers, appended to row by row: a file each, and the rows' lengths in memory."""

    def __init__(self, folder: Path, columns: Mapping[str, Any]) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._types = {name: np.dtype(kind) for name, kind in columns.items()}
        self._files: dict[str, BinaryIO] = {name: open(folder / f"{name}.bin", "wb") for name in columns}  # noqa: SIM115
        self._lengths: dict[str, array[int]] = {name: array("i") for name in columns}

    def append(self, values: Mapping[str, NDArray[Any]], lengths: Mapping[str, NDArray[np.int32]]) -> None:
        """Add rows: of each column their values one after another, and how many each row has."""
        for name, file in self._files.items():
            file.write(np.ascontiguousarray(values[name], self._types[name]).data)
            self._lengths[name].frombytes(np.ascontiguousarray(lengths[name], np.int32).tobytes())

    def close(self) -> None:
        """No more rows come."""
        for file in self._files.values():
            file.close()

    def lengths(self, name: str) -> Numbers:
        """The length of each row in a column."""
        return np.array(self._lengths[name], np.int64)

    def values(self, name: str) -> NDArray[Any]:
        """All values of a column, mapped from the disk."""
        path = self._folder / f"{name}.bin"
        if not path.stat().st_size:  # an empty file cannot be mapped
            return np.zeros(0, self._types[name])
        return np.memmap(path, self._types[name], "r")


def gather(values: NDArray[Any], begins: Numbers, lengths: Numbers) -> NDArray[Any]:
    """Pieces of an array, one after another."""
    pieces = [values[begin : begin + length] for begin, length in zip(begins.tolist(), lengths.tolist(), strict=True)]
    return np.concatenate(pieces) if pieces else values[:0]


def batches(sequences: Sequences, tokens: int = BATCH_TOKENS) -> Iterator[Sequences]:
    """Sequences in runs of about so many tokens."""
    last = np.cumsum(sequences.counts)  # the piece behind each sequence
    ends = np.cumsum(sequences.lengths)[last - 1] if len(last) else last
    first = 0
    while first < len(sequences):
        done = int(ends[first - 1]) if first else 0
        stop = max(first + 1, int(np.searchsorted(ends, done + tokens, side="right")))
        pieces = slice(int(last[first - 1]) if first else 0, int(last[stop - 1]))
        yield Sequences(sequences.begins[pieces], sequences.lengths[pieces], sequences.counts[first:stop])
        first = stop


class ArrowWriter:
    """A dataset of lists of numbers in the layout of `datasets.Dataset.save_to_disk`, written in batches."""

    def __init__(self, folder: Path, columns: Sequence[str], fingerprint: str) -> None:
        import pyarrow as pa

        folder.mkdir(parents=True)
        self._folder = folder
        self._columns = list(columns)
        self._fingerprint = fingerprint
        self.rows = 0
        item = {"dtype": "int32", "_type": "Value"}
        features = {name: {"feature": item, "_type": "List"} for name in columns}
        # Without the metadata `datasets` would take the columns for its older kind of list.
        schema = pa.schema([(name, pa.list_(pa.int32())) for name in columns]).with_metadata(
            {"huggingface": json.dumps({"info": {"features": features}})}
        )
        self._features = features
        self._schema = schema
        self._sink = pa.OSFile(str(folder / "data-00000-of-00001.arrow"), "wb")
        self._writer = pa.ipc.new_stream(self._sink, schema)

    def write(self, columns: Columns) -> None:
        """Add rows."""
        import pyarrow as pa

        arrays = []
        for name in self._columns:
            values, lengths = columns[name]
            offsets = np.zeros(len(lengths) + 1, np.int32)
            np.cumsum(lengths, out=offsets[1:])
            arrays.append(pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.ascontiguousarray(values, np.int32))))
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        self._writer.write_batch(batch)
        self.rows += batch.num_rows

    def close(self) -> None:
        """Finish the file, then what says what is in it."""
        self._writer.close()
        self._sink.close()
        write_json(
            self._folder / "dataset_info.json",
            {"citation": "", "description": "", "features": self._features, "homepage": "", "license": ""},
        )
        write_json(
            self._folder / "state.json",
            {
                "_data_files": [{"filename": "data-00000-of-00001.arrow"}],
                "_fingerprint": self._fingerprint,
                "_format_columns": None,
                "_format_kwargs": {},
                "_format_type": None,
                "_output_all_columns": False,
                "_split": None,
            },
        )
