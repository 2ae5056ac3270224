"""Notices: their words, where they go, and what makes one."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine import settings
from engine.errors import UsageError
from engine.files import read_json, write_json
from engine.journal import JournalWriter
from engine.notices import channels, events, words
from engine.notices.channels import Channel, Courier
from engine.notices.events import Events
from engine.process import ProcessId
from engine.workspace import RunFolder, Workspace
from tests.support.backups import make_run
from tui.cli import main


@pytest.fixture
def workspace(house: Path) -> Workspace:
    return Workspace(house / "ft").prepare()


@pytest.fixture
def hook() -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """A webhook on loopback: its port, and what it got."""
    got: list[dict[str, Any]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1], got
    server.shutdown()
    server.server_close()


def write(text: str, mode: int = 0o600) -> None:
    channels.path().parent.mkdir(parents=True, exist_ok=True)
    channels.path().write_text(text)
    channels.path().chmod(mode)


def test_every_kind_has_words() -> None:
    for kind in words.KINDS:
        notice = {"kind": kind, "run": "demo", "step": 5, "seconds": 3600, "remaining_s": 7200, "unsafe": ["demo"]}
        assert words.title(notice) not in ("", kind), kind
        words.body(notice)
        words.body({"kind": kind})
    assert "demo" in words.body({"kind": "lease_ended", "unsafe": ["demo"]})


def test_channels_are_read_and_never_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert channels.read() == []
    write("# mine\nntfy://SECRET-topic\n\nlease_soon, run_failed=tgram://SECRET/1?format=text\n")
    first, second = channels.read()
    assert first.wants("run_done") and second.wants("lease_soon") and not second.wants("run_done")
    assert second.url == "tgram://SECRET/1?format=text" and "SECRET" not in repr([first, second])
    assert main(["notices"]) == 0
    assert main(["notices", "--json"]) == 0
    assert "SECRET" not in capsys.readouterr().out
    for text in ("lease_son=ntfy://x", "just words"):
        write(text)
        with pytest.raises(UsageError) as caught:
            channels.read()
        assert ":1" in (caught.value.where or "")
    write("ntfy://SECRET", 0o644)
    with pytest.raises(UsageError, match="others can read"):
        channels.read()


def test_a_webhook_gets_it(workspace: Workspace, hook: tuple[int, list[dict[str, Any]]]) -> None:
    pytest.importorskip("apprise")
    port, got = hook
    write(f"lease_soon=json://127.0.0.1:{port}\n")
    assert main(["notices", "test"]) == 0
    assert "test notice" in got.pop()["title"]
    writer = JournalWriter(workspace.keeper_dir / "notices.jsonl")
    writer.append("notice", kind="lease_soon", seconds=1)  # before the keeper came: somebody was told
    courier = Courier(workspace)
    writer.append("notice", kind="run_done", run="demo")
    writer.append("notice", kind="lease_soon", seconds=3600, remaining_s=7200)
    end = time.monotonic() + 20
    while not got and time.monotonic() < end:
        courier.look()
        time.sleep(0.05)
    (told,) = got
    assert told["title"] == "ftui: the server ends soon" and "1 h 00" in told["message"]
    write(f"json://127.0.0.1:{port + 1}/SECRET\n")
    assert main(["notices", "test"]) == 1


def test_what_is_not_taken_is_sent_again(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "RETRY_S", (0.01, 0.01))
    write("ntfy://a\n")
    tries: list[str] = []

    def deliver(to: list[Channel], notice: dict[str, Any]) -> list[str]:
        tries.append(str(notice["kind"]))
        if len(tries) == 1:
            raise OSError("away")
        return ["ntfy://…"] if len(tries) == 2 else []

    courier = Courier(workspace, deliver)
    JournalWriter(workspace.keeper_dir / "notices.jsonl").append("notice", kind="run_done", run="demo")
    end = time.monotonic() + 10
    while len(tries) < 3 and time.monotonic() < end:
        courier.look()
        time.sleep(0.02)
    time.sleep(0.1)
    courier.look()
    assert tries == ["run_done"] * 3


def change(run: RunFolder, state: str, **more: Any) -> None:
    known = read_json(run.state) or {}
    live = ProcessId.current().to_json() if state == "running" else None
    write_json(run.state, known | {"state": state, "supervisor": live, "path": str(run.path)} | more)


def test_how_runs_end_and_that_an_evaluation_rises(workspace: Workspace) -> None:
    run = make_run(workspace.root, "demo")
    told: list[tuple[str, dict[str, Any]]] = []
    looks = Events(workspace, lambda kind, **fields: told.append((kind, fields)), busy=lambda: None)
    looks.look()
    assert told == [], "what ended before the keeper came is no news"
    change(run, "running")
    looks.look()
    writer = JournalWriter(run.journal)
    for step, value in ((100, 1.0), (110, 0.9), (120, 0.95), (130, 0.97)):
        writer.append("eval", step=step, eval_loss=value)
        looks.look()
    assert [kind for kind, _fields in told] == ["eval_rising"] and told[0][1]["best_step"] == 110
    writer.append("eval", step=140, eval_loss=0.99)
    looks.look()
    assert len(told) == 1, "said once"
    change(run, "failed", error={"message": "out of memory"})
    looks.look()
    looks.look()
    assert [kind for kind, _fields in told] == ["eval_rising", "run_failed"] and told[1][1]["reason"] == "out of memory"


def test_a_disk_that_fills_is_told_once(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "SLOW_S", 0.0)
    free = [500]
    monkeypatch.setattr(events.disk, "sample", lambda _path: {"free": free[0], "total": 1000})
    told: list[str] = []
    looks = Events(workspace, lambda kind, **_fields: told.append(kind), busy=lambda: None)
    for value in (500, 90, 80, 110, 90, 200, 50):
        free[0] = value
        looks.look()
    assert told == ["disk_filling", "disk_filling"]


def test_gpus_that_idle_run_a_command_without_a_shell(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "SLOW_S", 0.0)
    now = [0.0]
    monkeypatch.setattr(events.time, "monotonic", lambda: now[0])
    done = workspace.root / "done; touch other"
    settings.save(idle_minutes=2, idle_command=f"/bin/sh -c 'echo > \"$0\"' '{done}'")
    told: list[tuple[str, dict[str, Any]]] = []
    busy: list[float | None] = [50.0]
    looks = Events(workspace, lambda kind, **fields: told.append((kind, fields)), busy=lambda: busy[0])
    for second, load in ((0, 50.0), (60, 0.0), (170, 0.0), (185, 0.0), (400, 0.0)):
        now[0], busy[0] = float(second), load
        looks.look()
    assert [kind for kind, _fields in told] == ["gpus_idle"] and told[0][1]["seconds"] == 125
    assert looks._child is None or looks._child.wait() == 0
    assert done.exists() and not (workspace.root / "other").exists()
    busy[0] = None  # no GPUs, or a driver that says nothing
    looks.look()
    assert len(told) == 1
