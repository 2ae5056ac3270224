"""Hostile recipes with what must be said about them, through the command."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tui import cli

CASES = Path(__file__).parents[1] / "cases" / "recipe"


@pytest.mark.parametrize("case", sorted(path.name for path in CASES.glob("0*")))
def test_case(case, tmp_path, monkeypatch, capsys):
    expected = json.loads((CASES / case / "expect.json").read_text())
    shutil.copytree(CASES / "common", tmp_path / "model")
    shutil.move(tmp_path / "model" / "train.jsonl", tmp_path)
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    shutil.copy(CASES / case / "recipe.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)
    for name, value in expected.get("env", {}).items():
        monkeypatch.setenv(name, value.replace("<case folder>", str(tmp_path)))
    before = sorted(path for path in tmp_path.rglob("*"))

    assert cli.main(expected["argv"]) in expected["exit"]

    document = json.loads(capsys.readouterr().out)
    for wanted in expected["must_report"]:
        found = [f for f in document["findings"] if f["kind"] == wanted["kind"]]
        assert [f["level"] for f in found if f["level"] == wanted["severity"]]
        assert set(wanted["lines"]) <= {line for f in found for line in f["lines"]}
        for name in ("key", "suggestion", "first_line"):
            assert name not in wanted or wanted[name] in [f.get(name) for f in found]
        assert "keys" not in wanted or any(set(wanted["keys"]) <= set(f["keys"]) for f in found)
    if not expected["must_report"]:
        assert [f for f in document["findings"] if f["level"] == "error"] == []
    for key, value in expected.get("effective", {}).items():
        assert document["recipe"][key] == value
    assert sorted(path for path in tmp_path.rglob("*")) == before
    if "canary" in expected:
        assert not os.path.lexists(expected["canary"])
