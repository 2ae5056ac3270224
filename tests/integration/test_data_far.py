"""Data that must be fetched first: the hub through a server on loopback, a remote through the real rclone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.data import sources
from engine.errors import FtuiError, UsageError
from tests.support import hub_server
from tests.support.data import talk, write_rows

TRAIN = "".join(json.dumps(talk(f"How much is {n} and {n}?", f"That is {2 * n}, I think.")) + "\n" for n in range(40))
TEST = json.dumps(talk("What is left over?", "This is for the test.")) + "\n"


def ftui(*argv: str, **env: str) -> tuple[int, dict]:
    done = subprocess.run(
        [sys.executable, "-m", "tui", "data", *argv, "--json"],
        capture_output=True, text=True, env={**os.environ, **env}, timeout=60,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_a_data_set_of_the_hub(tmp_path: Path) -> None:
    files = {"README.md": b"hi", "data/train-0.jsonl": TRAIN.encode(), "data/test-0.jsonl": TEST.encode()}
    with hub_server.serve() as hub:
        hub.repositories["team/chat"] = hub_server.Repository(files, kind="datasets")
        hub.repositories["team/closed"] = hub_server.Repository(files, kind="datasets", gated=True)
        online = {"HF_ENDPOINT": hub.address, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
        code, report = ftui("check", "hf://team/chat", **online)
        assert code == 0 and report["rows"] == 40  # what is there to test on is not trained on
        assert not [path for path in hub.fetched() if path.endswith("README.md")]
        before = len(hub.fetched())
        assert ftui("check", "hf://datasets/team/chat@main/data/test-0.jsonl", **online)[1]["rows"] == 1
        assert ftui("check", "hf://team/chat/data", **online)[1]["rows"] == 41
        assert ftui("check", "hf://team/chat/data/t*-0.jsonl", **online)[1]["rows"] == 41
        assert len(hub.fetched()) == before  # by revision, once
        for name, kind, says in [
            ("hf://team/none", "no_data", "no data set"),
            ("hf://team/closed", "no_data", "gated"),
            ("hf://team/chat@v9", "no_data", "revision"),
            ("hf://team/chat/nothing.jsonl", "no_data", "no data at this path"),
            ("hf://", "bad_name", "no name"),
        ]:
            code, answer = ftui("check", name, **online)
            error = answer["error"]
            assert (code, error["kind"]) == (2, kind) and says in error["message"] and error["fix"], error
    code, report = ftui("check", "hf://team/chat", HF_HUB_OFFLINE="1")
    assert code == 0 and report["rows"] == 40
    code, answer = ftui("check", "hf://team/other", **{**online, "HF_ENDPOINT": "http://127.0.0.1:9"})
    assert code == 1 and "does not answer" in answer["error"]["message"]


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RCLONE_CONFIG_HERE_TYPE", "local")
    monkeypatch.setenv("RCLONE_CONFIG", str(tmp_path / "rclone.conf"))
    folder = tmp_path / "remote"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.jsonl").write_text(TRAIN)
    (folder / "deep" / "b.jsonl").write_text(TEST)
    (folder / "weights.bin").write_bytes(b"\0" * 9999)
    return folder


def test_data_of_a_remote(remote: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = sources.resolve([f"here:{remote}"], cache)
    assert [path.name for path in first] == ["a.jsonl", "b.jsonl"]  # and nothing else was fetched
    assert first[0].read_text() == TRAIN
    os.utime(first[0], (1, 1))
    assert sources.resolve([f"here:{remote}"], cache)[0].stat().st_mtime == 1  # not fetched again
    write_rows(remote / "a.jsonl", [talk("changed there", "and fetched anew")])
    again = sources.resolve([f"here:{remote}"], cache)
    assert again[0] != first[0] and "changed there" in again[0].read_text()
    (one,) = sources.resolve([f"here:{remote}/deep/b.jsonl"], cache)
    assert one.read_text() == TEST
    assert not list(cache.glob("data/.fetching*"))


def test_a_remote_that_cannot_be_read(remote: Path, tmp_path: Path) -> None:
    for name, error in [
        (f"here:{remote}/missing", FtuiError),
        ("nosuch:data", FtuiError),
        (f"here:{remote}/weights.bin", UsageError),
    ]:
        with pytest.raises(error) as raised:
            sources.resolve([name], tmp_path / "cache")
        assert raised.value.where == name and raised.value.fix
    (tmp_path / "file").write_text("")
    with pytest.raises(FtuiError, match="kept on this machine"):
        sources.resolve([f"here:{remote}"], tmp_path / "file")
