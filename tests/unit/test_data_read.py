"""Reading: formats, packing, encodings, layouts, broken files."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys

import pytest
import zstandard

from engine.data.check import check
from engine.errors import UsageError
from tests.support.data import check_rows, lines, of_kind, problems, talk, write_rows

ROWS = [
    talk("How do I boil an egg?", "Eight minutes in hot water."),
    talk("Which herb goes with lamb?", "Rosemary, or a little thyme."),
    talk("Can soup be frozen?", "Yes, once it has cooled."),
]
TEXT = "".join(json.dumps(row) + "\n" for row in ROWS)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.jsonl", TEXT.encode()),
        ("a.jsonl.gz", gzip.compress(TEXT.encode())),
        ("two-members.jsonl.gz", gzip.compress(TEXT[:40].encode()) + gzip.compress(TEXT[40:].encode())),
        ("a.jsonl.zst", zstandard.compress(TEXT.encode())),
        ("two-frames.jsonl.zst", zstandard.compress(TEXT[:40].encode()) + zstandard.compress(TEXT[40:].encode())),
        ("a.json", json.dumps(ROWS).encode()),
        ("pretty.json", json.dumps(ROWS, indent=1).encode()),
        ("lines.json", TEXT.encode()),
        ("no-last-newline.jsonl", TEXT.rstrip().encode()),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_formats(name, data, tmp_path):
    (tmp_path / name).write_bytes(data)
    report = check([str(tmp_path / name)])
    assert (report.rows, report.usable, report.format) == (3, 3, "messages")
    assert problems(report) == set()


def test_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    report = check([str(tmp_path / "a.parquet")])
    assert (report.rows, report.usable, problems(report)) == (3, 3, set())
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-20])
    assert of_kind(check([str(tmp_path / "cut.parquet")]), "compressed", "damaged")


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_damaged_packed_data_is_an_error(pack, tmp_path):
    packed = pack(os.urandom(100).hex().encode() + TEXT.encode() * 50)
    (tmp_path / "a.jsonl").write_bytes(packed[: len(packed) // 2])
    report = check([str(tmp_path / "a.jsonl")])
    assert of_kind(report, "compressed", "damaged")[0].level == "error"


def test_folder_and_glob(tmp_path):
    (tmp_path / "deep").mkdir()
    write_rows(tmp_path / "deep" / "b.jsonl", ROWS[:1])
    write_rows(tmp_path / "a.jsonl", ROWS[1:])
    (tmp_path / "notes.txt").write_text("not data")
    assert check([str(tmp_path)]).rows == 3
    assert check([str(tmp_path / "*.jsonl")]).rows == 2
    assert [file["rows"] for file in check([str(tmp_path)]).files] == [2, 1]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_other_unicode_is_named_and_read(encoding, tmp_path):
    (tmp_path / "a.jsonl").write_bytes(TEXT.encode(encoding))
    report = check([str(tmp_path / "a.jsonl")])
    (found,) = of_kind(report, "encoding")
    assert (found.level, found.extra["byte_offset"], report.usable) == ("error", 0, 3)
    assert encoding[:6].upper() in found.detail


def test_bytes_of_a_code_page_are_named_with_line_and_offset(tmp_path):
    bad = json.dumps(talk("Где мой заказ?", "Он уже в пути."), ensure_ascii=False).encode("cp1251")
    (tmp_path / "a.jsonl").write_bytes(TEXT.encode() + bad + b"\n" + TEXT.encode())
    report = check([str(tmp_path / "a.jsonl")])
    (found,) = of_kind(report, "encoding")
    assert (found.lines, found.extra["byte_offset"]) == ([4], len(TEXT.encode()) + bad.index(b"\xc3"))
    assert "cp1251" in found.detail
    assert (report.rows, report.usable) == (7, 6)


def test_byte_order_marks_of_files_put_together(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + TEXT.encode() + b"\xef\xbb\xbf" + TEXT.encode())
    report = check([str(tmp_path / "a.jsonl")])
    assert lines(report, "bom") == [1, 4]
    assert report.usable == 6


def test_all_broken_lines_are_reported(tmp_path):
    deep = "[" * 100_000
    rows = [ROWS[0], "{'a': 1}", '{"messages": [}', ROWS[1], '{"a": "\t"}', deep, "42", "null", '[{"role": "user"}]']
    report = check_rows(tmp_path, [*rows, json.dumps(ROWS[2]) + json.dumps(ROWS[2])])
    assert lines(report, "bad_json") == [2, 3, 5, 6, 10]
    assert lines(report, "row_not_object") == [7, 8, 9]
    assert (report.rows, report.usable) == (10, 2)


def test_numbers_that_are_none_and_numbers_that_are_big(tmp_path):
    rows = [
        f'{{"text": "{word} and words", "x": {word}}}' for word in ("NaN", "-Infinity", "1e999", "1" * 6000, "1e300")
    ]
    report = check_rows(tmp_path, rows)
    assert lines(report, "non_finite_number") == [1, 2, 3]
    assert report.usable == 2


def test_keys_that_stand_twice(tmp_path):
    row = '{"messages": [{"role": "user", "role": "user", "content": "a b"}, {"role": "assistant", "content": "c d"}]}'
    assert lines(check_rows(tmp_path, [ROWS[0], row]), "duplicate_key") == [2]


@pytest.mark.parametrize(
    ("text", "kind", "at"),
    [
        ("[\n" + ",\n".join(map(json.dumps, ROWS)) + ",\n]", "bad_json", [5]),
        ("[\n" + ",\n".join(map(json.dumps, ROWS)), "bad_json", [4]),
        ("[\n" + ",\n".join(map(json.dumps, ROWS)) + "\n]\nmore", "bad_json", [6]),
        (json.dumps(ROWS), "container", [1]),
        (json.dumps({"data": ROWS}), "container", [1]),
        (json.dumps({"version": 1, "rows": ROWS}, indent=2), "container", [1]),
        ("\n".join(json.dumps(row, indent=2) for row in ROWS), "container", [1, 13, 25]),
    ],
)
def test_what_is_not_one_row_a_line(text, kind, at, tmp_path):
    (tmp_path / "a.jsonl").write_text(text)
    report = check([str(tmp_path / "a.jsonl")])
    assert lines(report, kind) == at
    assert report.usable == 3


def test_a_large_array_is_read_in_pieces(tmp_path):
    rows = [talk(f"Question {n} " + "word " * 300, f"Answer {n}, in some words.") for n in range(3000)]
    (tmp_path / "a.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")
    report = check([str(tmp_path / "a.json")], workers=1)
    assert (report.rows, report.usable, of_kind(report, "bad_json")) == (3000, 3000, [])


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.jsonl.gz"])
def test_files_without_rows(name, tmp_path):
    contents = {
        "a.jsonl": b"\n \r\n",
        "a.json": b"[]",
        "a.csv": b"prompt,completion\r\n",
        "a.jsonl.gz": gzip.compress(b""),
    }
    (tmp_path / name).write_bytes(contents[name])
    assert of_kind(check([str(tmp_path / name)]), "empty_file")[0].level == "error"


def test_archives_and_other_files_are_refused_by_name(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b"PK\x03\x04" + bytes(100))
    (tmp_path / "b.jsonl").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    report = check([str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")])
    assert {(f.kind, f.level) for f in report.findings} == {("compressed", "error"), ("binary", "error")}


def test_what_cannot_be_read_at_all(tmp_path):
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "gone.jsonl").symlink_to(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    for name in ("pipe.jsonl", "gone.jsonl", "empty", "missing.jsonl", "*.nothing"):
        with pytest.raises(UsageError) as raised:
            check([str(tmp_path / name)])
        assert raised.value.fix and raised.value.exit_code == 2
    with pytest.raises(UsageError, match="switched off"):
        check(["hf://owner/name"])


def test_a_file_that_changes_while_it_is_read(tmp_path, monkeypatch):
    from engine.data import check as checking

    path = write_rows(tmp_path / "a.jsonl", ROWS)

    def change_first(block, options, real=checking.check_block):
        with open(path, "a") as file:
            file.write(json.dumps(ROWS[0]) + "\n")
        return real(block, options)

    monkeypatch.setattr(checking, "check_block", change_first)
    assert of_kind(check([str(path)], workers=1), "file_changed")[0].level == "error"


def test_csv_goes_on_after_a_broken_record(tmp_path):
    text = (
        'prompt,completion\n"open,answer one\nsecond question,second answer\n"a ""b""",c d\n"x"y,z\nlast one,end here\n'
    )
    (tmp_path / "a.csv").write_text(text)
    report = check([str(tmp_path / "a.csv")])
    assert lines(report, "csv_unclosed_quote") == [2, 5]
    assert (report.rows, report.usable) == (3, 3)


@pytest.mark.parametrize(
    ("name", "sign", "warned"), [("a.csv", ";", True), ("a.tsv", "\t", False), ("b.csv", "\t", True)]
)
def test_csv_delimiters(name, sign, warned, tmp_path):
    (tmp_path / name).write_text(f"prompt{sign}completion\nOne, two{sign}three and four\n")
    report = check([str(tmp_path / name)])
    assert bool(of_kind(report, "csv_delimiter")) is warned
    assert (report.usable, report.format) == (1, "prompt_completion")


def test_csv_cells_may_hold_messages(tmp_path):
    cell = json.dumps(ROWS[0]["messages"]).replace('"', '""')
    (tmp_path / "a.csv").write_text(f'messages,id\n"{cell}",1\n')
    assert check([str(tmp_path / "a.csv")]).usable == 1


def test_processes_change_nothing_in_the_report(tmp_path):
    """In a process of its own: multiprocessing keeps a helper as long as its parent lives."""
    rows = [talk(f"Question {n % 700} about cooking", f"Answer {n % 700} in words") for n in range(3000)]
    rows[1234] = "{broken"
    rows[2345] = talk("hidden\u200bspace", "two words")
    path = write_rows(tmp_path / "a.jsonl", rows * 5)
    code = "import sys; from engine.data.check import check; r = check(sys.argv[1:], workers=2); print(r.to_json())"
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(check([str(path)], workers=1).to_json())
