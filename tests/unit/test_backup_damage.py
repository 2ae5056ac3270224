"""Damaged files of a backup, here and at the remote: named, and never believed."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from engine.backup import capsule
from engine.backup.ledger import Ledger, file_name
from engine.backup.remote import Remote
from engine.errors import GateError


@pytest.mark.parametrize("field", [{"size": None}, {"size": ["a"]}, {"sha256": 5}, {"parts": True}, {"etag": None}])
def test_a_line_with_values_of_wrong_kinds_proves_nothing(tmp_path: Path, field: dict[str, object]) -> None:
    whole = {"size": 1, "mtime_ns": 1, "inode": 1, "sha256": "x", "part_size": 1, "parts": 1, "etag": "e", "md5": None}
    lines = [
        {"event": "hashed", "time": 1.0, "item": "final", "file": "a", **whole, **field},
        {"event": "uploaded", "time": 2.0, "item": "final", "file": "a", "etag": "e"},
        {"event": "hashed", "time": 1.0, "item": "final", "file": "b", **whole},
        {"event": "uploaded", "time": 2.0, "item": "final", "file": "b", "etag": "e"},
        {"event": "committed", "time": 3.0, "item": "final"},
        {"event": "verified", "time": 4.0, "item": "final", "file": "a", "how": "full"},
        {"event": "verified", "time": 4.0, "item": "final", "file": "b", "how": "full"},
        {"event": "item", "time": 4.0, "item": "final", "files": 2},
        {"event": "side", "time": 5.0, "item": "run", "state": 7, "reason": []},
    ]
    (tmp_path / file_name("r:x")).write_text("".join(json.dumps(line) + "\n" for line in lines))
    ledger = Ledger(tmp_path, "r:x")
    assert not ledger.item("final").safe and set(ledger.item("final").files) == {"b"}
    assert (ledger.item("run").side, ledger.item("run").reason) == (None, None)


@pytest.mark.parametrize(
    ("part", "good"), [({"base": [[]]}, True), ({"named": ["x"]}, False), ({"files": {"../x": {}}}, False), ({}, True)]
)
def test_a_damaged_manifest_at_the_remote_is_named(part: dict[str, object], good: bool) -> None:
    files = {"recipe.yaml": {"size": 1, "sha256": "x"}}
    document = json.dumps({"format": 1, "run": "a", "files": files, "base": {}, **part}).encode()
    remote = SimpleNamespace(path="r:x", listing=lambda: {"BACKUP.json": None}, read=lambda _path: document)
    if good:
        assert capsule.plan(cast("Remote", remote)).base == {}
        return
    with pytest.raises(GateError, match="cannot be read there"):
        capsule.plan(cast("Remote", remote))
