"""Rows dropped by hand, columns by a recipe's names, what lengths suggest, what crosses a border."""

from __future__ import annotations

import json
import os
import threading

import numpy as np
import pytest

from engine import recipe
from engine.data import border, drops, reader, suggest, training
from engine.data.check import check
from engine.data.prepare import Wishes, prepare
from engine.data.tally import Tally
from engine.errors import FtuiError
from engine.run import datacheck
from tests.support.data import talk, write_rows

ROWS = [talk(f"How much is {n} and {n}?", f"That makes {2 * n}, I think.") for n in range(30)]


def values(path):
    return list(reader.values(reader.blocks(path, Tally())))


def test_a_dropped_row_is_left_out_everywhere(tmp_path):
    path = write_rows(tmp_path / "a.jsonl", [*ROWS, "{broken"])
    for line, value in [values(path)[3], values(path)[30]]:
        drops.mark(tmp_path / "ft", value, file=path, line=line, dropped=True)
    dropped = drops.read(tmp_path / "ft")
    report = check([str(path)], dropped=dropped)
    assert report.usable == 29 and [f.lines for f in report.findings if f.kind == "dropped_row"] == [[4, 31]]
    assert not [f for f in report.findings if f.level == "error"]
    rows = list(training.rows(path, Tally(), how=training.How(dropped=dropped)))
    assert [row.line for row in rows if row.dropped] == [4, 31] and len(rows) == 31
    document = prepare(Wishes([str(path)], share=0, drop_near=False, dropped=dropped), tmp_path / "out")
    assert document["rows"]["dropped"] == {"by_hand": 2} and document["rows"]["unusable"] == 0
    assert "3 and 3" not in (tmp_path / "out" / "train.jsonl").read_text()
    loaded = recipe.load(_recipe(tmp_path, path))
    assert [f.kind for f in datacheck.look(loaded.recipe, tmp_path / "ft") if f.level == "error"] == []
    assert [f.kind for f in datacheck.look(loaded.recipe, tmp_path) if f.level == "error"] == ["bad_json"]


def _recipe(folder, path, more=""):
    file = folder / "r.yaml"
    file.write_text(f"model_name_or_path: x/y\ndataset_path: {path}\n{more}")
    return file


def test_a_mark_holds_when_the_file_is_sorted_and_goes_when_taken_back(tmp_path):
    path = write_rows(tmp_path / "a.jsonl", ROWS)
    line, value = values(path)[3]
    drops.mark(tmp_path, value, file=path, line=line, dropped=True)
    write_rows(path, [json.dumps(row, indent=None, separators=(",", ":"), sort_keys=True) for row in reversed(ROWS)])
    assert check([str(path)], dropped=drops.read(tmp_path)).usable == 29
    drops.mark(tmp_path, value, file=path, line=line, dropped=False)
    assert drops.read(tmp_path) == frozenset()


def test_the_list_survives_a_torn_line_and_many_writers(tmp_path):
    drops.mark(tmp_path, ROWS[0], file=tmp_path, line=1, dropped=True)
    with open(tmp_path / drops.NAME, "ab") as file:
        file.write(b'{"format": 1, "ro')
    threads = [
        threading.Thread(target=drops.mark, args=(tmp_path, row), kwargs={"file": tmp_path, "line": 1, "dropped": True})
        for row in ROWS[1:9]
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert drops.read(tmp_path) == {drops.key(row) for row in ROWS[:9]}
    with pytest.raises(FtuiError):
        drops.mark(tmp_path / drops.NAME, ROWS[0], file=tmp_path, line=1, dropped=True)


def test_columns_of_a_recipe(tmp_path):
    rows = [{"q": f"How much is {n} and {n}?", "a": f"That makes {2 * n}."} for n in range(5)]
    path = write_rows(tmp_path / "a.jsonl", [*rows, {"prompt": "Named as we", "completion": "do it here."}])
    loaded = recipe.load(_recipe(tmp_path, path, "dataset_columns:\n  prompt: q\n  completion: a\n"))
    columns = loaded.recipe.values["dataset_columns"]
    assert loaded.findings == [] and columns == {"prompt": "q", "completion": "a"}
    assert [f.kind for f in datacheck.look(loaded.recipe, tmp_path) if f.level == "error"] == []
    found = list(training.rows(path, Tally(), how=training.How(columns)))
    assert [row.form for row in found] == ["prompt + completion"] * 6 and found[2].columns[
        "completion"
    ] == "That makes 4."


@pytest.mark.parametrize(
    ("value", "kind", "says"),
    [
        ("{promt: q}", "unknown_column", "prompt"),
        ("{prompt: 5}", "wrong_type", "column's name"),
        ("{prompt: q, completion: q}", "wrong_type", "of its own"),
        ("q", "wrong_type", ""),
    ],
)
def test_columns_that_cannot_be_mapped(value, kind, says, tmp_path):
    loaded = recipe.load(_recipe(tmp_path, "a.jsonl", f"dataset_columns: {value}\n"))
    (found,) = loaded.findings
    assert (found.kind, found.lines, found.level) == (kind, [3], "error") and says in found.fix


def test_what_lengths_suggest():
    short = suggest.advise(np.full(1000, 90, np.int32))
    assert short.changes() == {"max_length": 128, "packing": False} | {"global_batch_size": 16}
    mixed = np.concatenate([np.full(10_000, 100, np.int32), np.full(50, 3000, np.int32)])
    found = suggest.advise(mixed)
    assert found.max_length == 128 and found.cut == pytest.approx(50 / 10_050) and not found.packing
    longer = suggest.advise(np.concatenate([mixed, np.full(200, 3000, np.int32)]))
    assert longer.max_length == 3072 and longer.packing and longer.filled < 0.1
    assert longer.steps * longer.global_batch_size * 3072 >= 1.0 * 10_000 * 100
    assert suggest.advise(np.full(5, 9000, np.int32), most=4096).max_length == 4096
    assert suggest.advise(np.zeros(0, np.int32)) is None


def test_what_crosses_a_border():
    found = {"pii.phone_ru": 3, "pii.inn_ru": 1, "pii.tckn_tr": 2, "pii.email": 9, "pii.idnr_de": 1, "secret.x_fi": 1}
    assert border.crossed(found, "FR") == {
        "server": "FR", "people": {"DE": 1, "RU": 4, "TR": 2}, "crosses": ["RU", "TR"]
    }  # fmt: skip
    assert "RU, TR" in border.sentence(border.crossed(found, "fr"))
    assert border.crossed(found, None)["crosses"] is None and "`country`" in border.sentence(
        border.crossed(found, None)
    )
    assert "No id" in border.sentence(border.crossed({"pii.email": 3}, "FR"))


def test_a_pipe_in_place_of_the_list_of_dropped_rows_is_an_error_at_once(tmp_path):
    os.mkfifo(tmp_path / drops.NAME)
    with pytest.raises(FtuiError):
        drops.read(tmp_path)
