"""Any row of a file: the same as reading it through, whatever its form; and what becomes of a file that changes."""

from __future__ import annotations

import gzip
import json
import random

import pytest

from engine.data import index, preview, reader
from engine.data.tally import Tally
from engine.errors import FtuiError, UsageError
from tests.support.data import talk, write_rows


def read(path):
    return list(reader.values(reader.blocks(path, Tally())))


def messy(seed):
    """Rows of all lengths, blank lines, both line endings, sometimes a mark before and no end after."""
    rng = random.Random(seed)
    data = b"\xef\xbb\xbf" if seed % 3 == 0 else b""
    for number in range(rng.randint(2, 120)):
        chance = rng.random()
        if chance < 0.15:
            data += b"\n" if chance < 0.1 else b"\r\n"
        else:
            size = rng.choice([1, 10, 100, 5000])
            data += json.dumps({"text": "é" * size, "i": number}).encode() + rng.choice([b"\n", b"\r\n"])
    data += b'{"text": "the last one"}'
    return data if seed % 2 else data + b"\n"


@pytest.mark.parametrize("seed", range(6))
def test_rows_are_those_of_the_reader(seed, tmp_path, monkeypatch):
    monkeypatch.setattr(index, "PIECE", 1 << 12)
    monkeypatch.setattr(index, "SPACING", random.Random(seed).choice([64, 1000, 1 << 18]))
    plain, packed = tmp_path / "a.jsonl", tmp_path / "a.jsonl.gz"
    plain.write_bytes(messy(seed))
    packed.write_bytes(gzip.compress(messy(seed)))
    wanted = read(plain)
    for path in (plain, packed):
        rows = index.build(path, tmp_path / "cache")
        assert [rows.row(number) for number in range(len(rows))] == wanted
        assert [rows.at_line(line) for line, _value in wanted] == list(range(len(wanted)))
        rows.close()
    assert list((tmp_path / "cache" / "rows").iterdir()) == []  # a scratch file has no name, a small index is not kept


def test_other_forms(tmp_path):
    table = tmp_path / "a.csv"
    table.write_text('prompt,completion\n"two\nlines",yes\nno,"a, b"\n')
    rows = index.build(table, tmp_path)
    assert [rows.row(number) for number in range(len(rows))] == read(table) and rows.row(1)[0] == 4
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"text": [f"row {n}" for n in range(1200)]}), tmp_path / "a.parquet")
    rows = index.build(tmp_path / "a.parquet", tmp_path)
    assert len(rows) == 1200 and rows.row(1100) == (1101, {"text": "row 1100"})


def test_a_large_file_keeps_its_index_until_it_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(index, "KEEP_FROM", 0)
    path = write_rows(tmp_path / "a.jsonl", [talk(f"question {n}", "answer") for n in range(500)])
    rows = index.build(path, tmp_path)
    (kept,) = (tmp_path / "rows").glob("*.npz")
    monkeypatch.setattr(index, "_scan", None)  # it is not read again
    assert len(index.build(path, tmp_path)) == 500
    monkeypatch.undo()
    with open(path, "a") as file:
        file.write(json.dumps(talk("one more", "row")) + "\n")
    with pytest.raises(UsageError, match="changed"):
        rows.row(3)
    assert len(index.build(path, tmp_path)) == 501
    kept.write_bytes(b"damaged")
    assert len(index.build(path, tmp_path)) == 501


def test_what_it_cannot_do(tmp_path):
    with pytest.raises(UsageError, match="no rows"):
        index.build(write_rows(tmp_path / "empty.jsonl", []), tmp_path)
    path = write_rows(tmp_path / "a.jsonl", [talk("a", "b")])
    with pytest.raises(UsageError, match="no row 2"):
        index.build(path, tmp_path).row(1)
    with pytest.raises(FtuiError, match="stopped"):
        index.build(path, tmp_path, progress=lambda _bytes, _rows: False)
    (tmp_path / "file").write_text("")
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(FtuiError, match="room"):
        index.build(tmp_path / "b.jsonl.gz", tmp_path / "file")


def test_a_far_row_is_shown_through_the_index(tmp_path, monkeypatch):
    rows = [talk(f"question {n}", "a fine answer") for n in range(3000)]
    path = write_rows(tmp_path / "a.jsonl", rows)
    monkeypatch.setattr(reader, "blocks", None)  # it is not read from its beginning
    (shown,) = preview.preview(str(path), start=2900, count=1)
    assert shown.line == 2900 and "question 2899" in shown.pieces[0][0]
