"""The serve screen: what it offers, a server's life in its files, the chat with a server that speaks OpenAI's API."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from engine.errors import FtuiError
from engine.files import write_json
from engine.process import ProcessId
from engine.serve import engines, launch, offer, whole
from engine.serve.engines import Engine
from engine.workspace import Workspace
from tests.support.app import stop_clock, until, workspace_at
from tests.support.fake_run import FakeRun
from tests.support.merge_files import write_adapter, write_base
from tui.app import FtuiApp
from tui.modals.card import Card
from tui.modals.confirm import Confirm
from tui.screens.serve import ServeScreen
from tui.sources.serve_source import ServeSource

SIZES = [(80, 24), (120, 40)]
KEY = "ftui-of-the-test"


class Answers(BaseHTTPRequestHandler):
    """A server that answers every question with the model's name and how many messages it got."""

    def log_message(self, *_words: object) -> None:
        pass

    def do_GET(self) -> None:
        text = 'vllm:request_success_total{reason="stop"} 3.0\nvllm:request_success_total{reason="length"} 4.0\n'
        self._send(text + "vllm:num_requests_running 1\n# HELP x\n")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        assert self.headers["authorization"] == f"Bearer {KEY}"
        said = f"{body['model']} heard {len(body['messages'])}: {body['messages'][-1]['content']}"
        lines = [json.dumps({"choices": [{"delta": {"content": word + " "}}]}) for word in said.split()]
        self._send("".join(f"data: {line}\n\n" for line in lines) + "data: [DONE]\n\n")

    def _send(self, text: str) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())


@pytest.fixture
def port() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stop_clock(monkeypatch)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr("tui.screens.serve.POLL_S", 0.05)
    monkeypatch.setenv("SSH_CONNECTION", "192.0.2.1 50000 192.0.2.7 22")
    monkeypatch.setattr("getpass.getuser", lambda: "me")


def shape(**more: Any) -> dict[str, Any]:
    return {
        "num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 8, "max_position_embeddings": 64,
        "dtype": "float32", **more,
    }  # fmt: skip


@pytest.fixture
def workspace(house: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """With an adapter `support` and its base; `$ENGINE` says which engine there is."""
    place = workspace_at(house)
    write_base(house / "home" / "base", **shape())
    write_adapter(house / "home" / "support", base_model_name_or_path="base")
    monkeypatch.chdir(house / "home")
    monkeypatch.setattr(engines, "choose", lambda _wanted: Engine(os.environ.get("ENGINE", "vllm"), "/env/bin/python"))
    monkeypatch.setattr("psutil.virtual_memory", lambda: type("Memory", (), {"available": 16_000_000_000}))
    monkeypatch.setattr(launch, "free_port", lambda _host, _wanted: 8000)
    return place


def serving(workspace: Workspace, port: int, *, name: str = "support", state: str = "ready", **spec: Any) -> None:
    """The files of a server whose supervisor is this process."""
    folder = launch.folder_of(workspace) / name
    folder.mkdir(parents=True)
    (folder / "key").write_text(KEY + "\n")
    document = {
        "format": 1, "name": name, "run": None, "engine": "vllm", "host": "127.0.0.1", "port": port,
        "model": str(workspace.root.parent / "base"), "served": "base", "tuned": name, "key_variable": "VLLM_API_KEY",
        "adapters": [{"name": name, "path": str(workspace.root.parent / "support"), "rank": 4}],
        "fit": {"weights": 2_000, "max_length": 64, "tensor_parallel": 1, "room": 11_200_000_000},
        "argv": ["/v/python", "-m", "vllm"], "env": {},
    }  # fmt: skip
    write_json(folder / "spec.json", {**document, **spec})
    supervisor = ProcessId.current().to_json()
    write_json(folder / "state.json", {"format": 1, "state": state, "supervisor": supervisor, "restarts": 0})
    checked = {"template": True, "adapter": True, "first_token_s": 0.21, "tokens_per_s": 45.3, "passed": True}
    write_json(folder / "check.json", {"format": 1, **checked})


def shown(screen: ServeScreen, *names: str) -> str:
    return "\n".join(str(screen.query_one(f"#{name}").content) for name in names or ("title", "facts", "tuned"))  # type: ignore[attr-defined]


def at(workspace: Workspace) -> FtuiApp:
    return FtuiApp(workspace, then=lambda app: app.open_serve(str(workspace.root.parent / "support")))


async def opened(app: FtuiApp, pilot: Any) -> ServeScreen:
    await until(lambda: isinstance(app.screen, ServeScreen) and "looking" not in shown(app.screen), pilot)
    assert isinstance(app.screen, ServeScreen)
    return app.screen


async def test_what_serving_would_be(workspace: Workspace) -> None:
    app = at(workspace)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await opened(app, pilot)
        text = shown(screen)
        assert "not served" in text and "support on ~/base" in text and "--enable-lora" in text and "s starts" in text
        assert screen.check_action("start", ()) and not screen.check_action("stop", ())
        await pilot.press("m")
        await until(lambda: "merged first" in shown(screen), pilot)
        assert screen.offer is not None and screen.offer.to_merge == whole.place(workspace, screen.offer.target)
        assert str(screen.offer.to_merge) in screen.offer.command and "--enable-lora" not in screen.offer.command


async def test_what_cannot_be_served_is_said_in_place(workspace: Workspace) -> None:
    app = FtuiApp(workspace, then=lambda app: app.open_serve("no-such-thing"))
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await opened(app, pilot)
        await until(lambda: screen.problem is not None, pilot)
        assert "cannot" in shown(screen, "facts") and not screen.check_action("start", ())


async def test_a_server_that_answers(workspace: Workspace, port: int) -> None:
    serving(workspace, port)
    app = at(workspace)
    async with app.run_test(size=(120, 40)) as pilot:
        screen = await opened(app, pilot)
        await until(lambda: "7 requests answered, 1 under way" in shown(screen), pilot)
        text = shown(screen)
        assert "ready" in text and "adapter active" in text and "45.3 tokens/s" in text
        await pilot.press("enter", *"hi", "enter")
        await until(lambda: len(screen.turns) == 1 and screen.turns[0].over and not screen._busy, pilot)
        await pilot.press(*"more", "enter")
        await until(lambda: len(screen.turns) == 2 and screen.turns[1].over and not screen._busy, pilot)
        assert screen.turns[0].tuned == "support heard 1: hi " and screen.turns[0].base == "base heard 1: hi "
        assert screen.turns[1].tuned == "support heard 3: more " and screen.turns[1].base == "base heard 3: more "
        assert "base heard 3" in shown(screen, "base") and screen.query_one("#side-base").display
        await pilot.press("escape", "c")
        await until(lambda: isinstance(app.screen, Card), pilot)
        assert isinstance(app.screen, Card)
        entries = dict(app.screen.entries)
        assert any("ssh -N -L" in text for text in entries.values())
        assert not any(KEY in text for text in entries.values())


async def test_an_answer_that_does_not_come_is_an_error_and_the_chat_goes_on(workspace: Workspace, port: int) -> None:
    serving(workspace, port)
    app = at(workspace)
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await opened(app, pilot)
        await until(lambda: screen.snapshot.state == "ready", pilot)
        (launch.folder_of(workspace) / "support" / "key").unlink()
        await pilot.press("enter", "a", "enter")
        await until(lambda: app.screen is not screen, pilot)
        await pilot.press("escape")
        await until(lambda: app.screen is screen and not screen._busy, pilot)
        assert "(no answer)" in shown(screen, "tuned")


async def test_start_and_stop(workspace: Workspace, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    def begin(place: Workspace, name: str, *, merged: bool, say: Any) -> Any:
        say("half way")
        told.append(f"{Path(name).name} {merged}")
        serving(place, port)
        return offer.existing(place, name)

    monkeypatch.setattr(offer, "begin", begin)
    stopped: list[str] = []
    monkeypatch.setattr(launch, "stop", lambda served: not stopped.append(served.name))
    app = at(workspace)
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await opened(app, pilot)
        await pilot.press("s")
        await until(lambda: screen.snapshot.state == "ready", pilot)
        assert told == ["support False"] and not screen.check_action("form", ())
        await pilot.press("x")
        await until(lambda: isinstance(app.screen, Confirm), pilot)
        await pilot.press("y")
        await until(lambda: stopped == ["support"] and not screen._busy, pilot)


async def test_what_fails_to_start_is_reported(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(*_positional: Any, **_named: Any) -> Any:
        raise FtuiError("the server did not come up: no space", fix="free some")

    monkeypatch.setattr(offer, "begin", begin)
    app = at(workspace)
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await opened(app, pilot)
        await pilot.press("s")
        await until(lambda: app.screen is not screen, pilot)
        assert not screen._busy and screen.doing == ""


def test_the_source_tells_lost_and_failed_servers(workspace: Workspace) -> None:
    serving(workspace, 1, state="failed")
    state = launch.folder_of(workspace) / "support" / "state.json"
    document = json.loads(state.read_text())
    lines = ["Traceback", "ValueError: no room", "end"]
    write_json(state, {**document, "error": {"how": "exit code 1", "lines": lines}})
    snapshot = ServeSource(workspace, "support").poll()
    assert snapshot.error == "ValueError: no room" and not snapshot.live
    gone = {**document["supervisor"], "pid": 2**22 - 3}
    write_json(state, {**document, "state": "ready", "supervisor": gone})
    assert ServeSource(workspace, "support").poll().state == "lost"
    assert ServeSource(workspace, "never").poll().state == ""


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("what", ["offer", "ready", "failed"])
def test_how_it_looks(
    snap_compare: Any,
    workspace: Workspace,
    what: str,
    size: tuple[int, int],
    port: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if what != "offer":
        serving(workspace, port, state=what)
    if what == "failed":
        state = launch.folder_of(workspace) / "support" / "state.json"
        error = {"how": "exit code 1", "lines": ["RuntimeError: the engine core did not start"]}
        write_json(state, {**json.loads(state.read_text()), "error": error})
    poll = ServeSource.poll
    url = "http://127.0.0.1:8000"
    monkeypatch.setattr(ServeSource, "poll", lambda self: dataclasses.replace(poll(self), url=url))
    app = at(workspace)

    async def before(pilot: Any) -> None:
        screen = await opened(app, pilot)
        await until(lambda: what == "offer" or screen.snapshot.state == what, pilot)
        if what == "ready":
            await until(lambda: "7 requests" in shown(screen), pilot)
            screen.turns = []
            await pilot.press("enter", *"Where", "enter")
            await until(lambda: screen.turns and screen.turns[0].over and not screen._busy, pilot)
            screen.turns[0].first_s, screen.turns[0].rate = 0.21, 45.3
            screen._draw()
        await pilot.pause(0.2)

    assert snap_compare(app, terminal_size=size, run_before=before)


async def test_the_way_there_from_the_list_and_from_a_run(workspace: Workspace) -> None:
    FakeRun(workspace.root, "demo-1", state="done", max_steps=20, gpus=0)
    app = FtuiApp(workspace)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(lambda: app.runs, pilot)
        for keys in (("m",), ("enter", "m")):
            await pilot.press(keys[0])
            if keys[1:]:
                await until(lambda: type(app.screen).__name__ == "RunScreen", pilot)
                await pilot.press(keys[1])
            await until(lambda: isinstance(app.screen, ServeScreen), pilot)
            assert isinstance(app.screen, ServeScreen) and app.screen.target == "demo-1"
            await pilot.press("escape")
