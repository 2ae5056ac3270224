"""Hostile data with what must be said about it, through the command."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tui import cli

CASES = Path(__file__).parents[1] / "cases" / "data"


@pytest.mark.parametrize("case", sorted(path.name for path in CASES.iterdir()))
def test_case(case, tmp_path, monkeypatch, capsys):
    expected = json.loads((CASES / case / "expect.json").read_text())
    folder = shutil.copytree(CASES / case, tmp_path / "case")
    if (folder / "make.py").exists():
        subprocess.run([sys.executable, folder / "make.py", folder], check=True)
    monkeypatch.chdir(folder)
    monkeypatch.setattr("engine.data.check.WORTH_A_PROCESS", 1 << 40)  # multiprocessing's helper outlives a check
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    assert cli.main(expected["argv"]) in expected["exit"]

    out = capsys.readouterr()
    assert len(out.out) + len(out.err) < 65_536
    document = json.loads(out.out)
    for wanted in expected["must_report"]:
        kinds = {wanted["kind"], *wanted.get("alt_kinds", [])}
        found = [f for f in document["findings"] if f["kind"] in kinds]
        if "subtype" in wanted:
            found = [f for f in found if f["subtype"] == wanted["subtype"]]
        assert found, wanted
        assert wanted["severity"] in {f["level"] for f in found}
        assert set(wanted.get("lines", [])) <= {line for f in found for line in f["lines"]}
        if "byte_offset" in wanted:
            assert found[0]["byte_offset"] == wanted["byte_offset"]
        if "pairs" in wanted:
            assert sorted(found[0]["pairs"]) == wanted["pairs"]
    for text in expected["must_not"]:
        if named := re.match(r"(?:any |a )?(\w+) on lines? (\d+)(?:-(\d+))?", text):
            lines = set(range(int(named[2]), int(named[3] or named[2]) + 1))
            kinds = {f["kind"] for f in document["findings"] if f["level"] != "note"}
            for kind in kinds if named[1] == "finding" else {named[1]}:
                assert not [f for f in document["findings"] if f["kind"] == kind and lines & set(f["lines"])]
    if case == "24-clean":
        assert not [f for f in document["findings"] if f["level"] != "note"]
    if "rows" in expected.get("facts", {}):
        assert document["rows"] == expected["facts"]["rows"]
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
