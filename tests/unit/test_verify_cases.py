"""Damaged folders of checkpoints with what must be said about them, through the command."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest

from tui import cli

CASES = Path(__file__).parents[1] / "cases" / "ckpt"


def content(folder: Path) -> dict[str, str]:
    """Every entry below a folder: where a link leads, or the hash of a file."""
    return {
        str(path): os.readlink(path) if path.is_symlink() else hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


@pytest.mark.parametrize("case", sorted(path.name for path in CASES.iterdir()))
def test_case(case, tmp_path, monkeypatch, capsys):
    expected = json.loads((CASES / case / "expect.json").read_text())
    shutil.copytree(CASES / case, tmp_path / "case", symlinks=True)
    monkeypatch.chdir(tmp_path / "case")
    before = content(tmp_path / "case")

    assert cli.main(expected["argv"]) in expected["exit"]

    document = json.loads(capsys.readouterr().out)
    entries = {Path(entry["path"]).name: entry for entry in document["checkpoints"]}
    for wanted in expected["must_report"]:
        entry = entries[wanted["checkpoint"]]
        if wanted["status"] == "ok":
            assert entry["state"] == "complete"
            assert entry["resumable"]
            assert not [f for f in entry["findings"] if f["level"] != "note"]
            continue
        levels = {f["level"] for f in entry["findings"] if f["kind"] == wanted["kind"]}
        assert wanted["severity"] in levels
        assert entry["state"] != "complete"
        assert entry["resumable"] == (wanted["status"] == "degraded")
        assert all(f["fix"] for f in entry["findings"])
    choice = expected["resume_choice"]
    assert Path(document["resume_from"]).name in ([choice] if isinstance(choice, str) else choice)
    assert content(tmp_path / "case") == before
    assert not os.path.lexists(expected.get("canary", "/nowhere"))
