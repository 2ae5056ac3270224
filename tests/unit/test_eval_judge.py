"""The judge against a small server of our own: both orders, agreement, nonsense, absence, and what is not sent."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from engine.errors import UsageError
from engine.evaluate import judge
from engine.evaluate.judge import Endpoint
from engine.evaluate.rows import Row
from engine.evaluate.scoring import Scores


class Server:
    """Answers as `reply` says; keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.headers: list[str | None] = []
        self.reply: Callable[[str], tuple[int, Any]] = lambda prompt: (200, "[[C]]")
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                owner.asked.append(body)
                owner.headers.append(self.headers.get("Authorization"))
                status, said = owner.reply(body["messages"][0]["content"])
                raw = (
                    said
                    if isinstance(said, bytes)
                    else json.dumps({"choices": [{"message": {"content": said}}]}).encode()
                )
                self.send_response(status)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, *words: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name in judge.KEYS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("engine.evaluate.judge.time.sleep", lambda seconds: None)
    made = Server()
    yield made
    made.close()


ROWS = [
    Row(f"task:{n}", "task", n, messages=[{"role": "user", "content": f"q{n}"}], expected="right") for n in range(1, 21)
]
RESULTS: dict[str, Any] = {
    "roles": {
        role: {"rows": {row.id: {"answer": {"text": f"{role} says {row.id}"}} for row in ROWS}}
        for role in ("base", "tuned")
    }
}


def ask(server: Server, cache: Path, *, url: str | None = None, rubric: str | None = None) -> tuple[Any, Scores]:
    scores = Scores()
    endpoint = Endpoint(url or server.url, "judge-1", rubric)
    return judge.run(endpoint, cache, scores, ROWS, RESULTS, lambda text: None), scores


def part(prompt: str, head: str) -> str:
    return prompt.split(f"[{head}]\n", 1)[1].split("\n", 1)[0]


def test_a_judge_that_prefers_the_tuned_answer(server: Server, tmp_path: Path) -> None:
    server.reply = lambda prompt: (200, "Because. [[A]]" if "tuned" in part(prompt, "Answer A") else "Hm. [[ b ]]")
    result, scores = ask(server, tmp_path)
    assert (result["tuned"], result["base"], result["ties"], result["agreement"]) == (20, 0, 0, 1.0)
    metric = scores.get("judge_win_rate")
    assert metric is not None and metric.tuned.value == 1 and metric.delta.p < 0.01 and metric.delta.verdict == "better"
    assert len(server.asked) == 40 and not scores.findings
    first = [part(body["messages"][0]["content"], "Answer A").split()[0] for body in server.asked]
    assert first.count("tuned") == first.count("base") == 20  # each row in both orders
    assert server.headers == [None] * 40
    ask(server, tmp_path)
    assert len(server.asked) == 40  # a repetition asks nothing again


def test_a_judge_that_only_looks_at_the_place_is_found_out(server: Server, tmp_path: Path) -> None:
    server.reply = lambda prompt: (200, "[[A]]")
    result, scores = ask(server, tmp_path)
    assert (result["ties"], result["agreement"]) == (20, 0.0) and "0 %" in result["text"]
    metric = scores.get("judge_win_rate")
    assert metric is not None and metric.tuned.value == 0.5 and metric.delta.verdict != "better"


@pytest.mark.parametrize("said", ["I like both!", "", None, b"not json", b'{"choices": []}', "[[D]] [[6]]"])
def test_nonsense_does_not_count(server: Server, tmp_path: Path, said: Any) -> None:
    server.reply = lambda prompt: (200, said if "task:7" in prompt else "[[C]]")
    result, scores = ask(server, tmp_path)
    assert result["rows"] == 19 and result["nonsense"] == 1
    assert [(f.kind, f.level, f.count) for f in scores.findings] == [("judge_nonsense", "warning", 1)]


def test_nonsense_alone_is_an_error_and_no_metric(server: Server, tmp_path: Path) -> None:
    server.reply = lambda prompt: (200, "blah")
    result, scores = ask(server, tmp_path)
    assert result is None and not scores.metrics
    assert [(f.kind, f.level) for f in scores.findings] == [("judge_nonsense", "error")]


def test_a_judge_that_goes_away_leaves_what_it_said(server: Server, tmp_path: Path) -> None:
    server.reply = lambda prompt: (200, "[[C]]") if "task:1" in prompt else (401, "no")
    result, scores = ask(server, tmp_path)
    assert [finding.kind for finding in scores.findings] == ["judge_away"]
    assert "HTTP 401" in scores.findings[0].detail and scores.findings[0].level == "error"
    assert result is None or result["rows"] < 20
    server.reply = lambda prompt: (200, "[[C]]")
    result, scores = ask(server, tmp_path)  # the same command asks for the rest
    assert result["rows"] == 20 and not scores.findings


def test_a_busy_judge_is_asked_again(server: Server, tmp_path: Path) -> None:
    answers = iter([(503, ""), (429, "")] + [(200, "[[C]]")] * 100)
    lock = threading.Lock()

    def reply(prompt: str) -> tuple[int, Any]:
        with lock:
            return next(answers)

    server.reply = reply
    result, scores = ask(server, tmp_path)
    assert result["rows"] == 20 and not scores.findings


def test_nobody_there(server: Server, tmp_path: Path) -> None:
    result, scores = ask(server, tmp_path, url="http://127.0.0.1:9/v1")
    assert result is None and [finding.kind for finding in scores.findings] == ["judge_away"]


def test_points_by_a_rubric(server: Server, tmp_path: Path) -> None:
    server.reply = lambda prompt: (200, "[[5]]" if "tuned says" in prompt else "[[2]]")
    result, scores = ask(server, tmp_path, rubric="Be kind.")
    metric = scores.get("judge_score")
    assert metric is not None and (metric.base.value, metric.tuned.value) == (0.25, 1.0)
    assert result["kind"] == "rubric" and "tuned 5.00, base 2.00" in result["text"]
    assert all("Be kind." in body["messages"][0]["content"] for body in server.asked)


def test_no_key_no_call_and_the_key_stays_in_the_environment(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="no key") as caught:
        Endpoint("https://judge.example/v1", "m").check()
    assert "FTUI_JUDGE_KEY" in str(caught.value.fix)
    with pytest.raises(UsageError, match="no address"):
        Endpoint("judge.example", "m").check()
    monkeypatch.setenv("FTUI_JUDGE_KEY", "s3cret-key")
    Endpoint("https://judge.example/v1", "m").check()
    result, _scores = ask(server, tmp_path)
    assert set(server.headers) == {"Bearer s3cret-key"}
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"s3cret" not in kept and "s3cret" not in json.dumps(result)
