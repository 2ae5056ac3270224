"""The parts of an evaluation that need no model: rows, leaks, stores, the user's function, votes, comparison."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from engine.errors import GateError, UsageError
from engine.evaluate import gate, leaks, reading, rows, scoring, user_function, wording
from engine.evaluate.compare import compare
from engine.evaluate.scoring import Scores
from engine.evaluate.store import Store, fingerprint
from engine.files import write_json
from engine.workspace import Workspace
from tests.support.evaluation_folder import evaluated, lines, run_folder


@pytest.fixture
def workspace(house: Path) -> Workspace:
    return Workspace(house / "ft").prepare()


def file_of(path: Path, content: list[object]) -> str:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in content), encoding="utf-8")
    return str(path)


def test_rows_come_in_every_form(tmp_path: Path) -> None:
    name = file_of(
        tmp_path / "task.jsonl",
        [
            {"prompt": "2+2?", "expected": 4, "metric": "numeric"},
            {
                "prompt": "Say hi.",
                "system": "Be brief.",
                "expected": ["hi", "Hi"],
                "metric": ["contains", "m.py:check"],
            },
            {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], "extract": "(a)"},
            {"prompt": "Once upon", "completion": " a time"},
            {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]},
            {"instruction": "Translate", "input": "дом", "output": "house"},
            {"prompt": [{"role": "user", "content": "q"}], "completion": [{"role": "assistant", "content": "a"}]},
            {"messages": [{"role": "user", "content": "q"}], "expected": {"type": "object"}, "metric": "json_schema"},
        ],
    )
    found = rows.task(name)
    assert [row.line for row in found] == list(range(1, 9))
    assert found[0].expected == 4 and found[0].metrics == ("numeric",) and found[0].reference is None
    assert [m["role"] for m in found[1].messages or []] == ["system", "user"] and found[1].metrics[1] == "m.py:check"
    assert found[2].reference == "a" and found[2].extract == "(a)" and found[2].prompt == "q"
    assert found[3].text == "Once upon" and found[3].reference == " a time" and found[3].messages is None
    assert [row.reference for row in found[4:7]] == ["a", "house", "a"]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"prompt": "no expectation"}, "asks nothing"),
        ({"prompt": "   ", "expected": "x"}, "asks nothing"),
        ({"expected": "x"}, "asks nothing"),
        (["a", "list"], "asks nothing"),
        ({"messages": [], "expected": "x"}, "asks nothing"),
        ({"prompt": "q", "expected": "x", "metric": "exactly"}, "no metric 'exactly'"),
    ],
)
def test_a_bad_row_is_told_with_its_line(tmp_path: Path, row: object, said: str) -> None:
    name = file_of(tmp_path / "task.jsonl", [{"prompt": "q", "expected": "x"}, row])
    with pytest.raises(UsageError) as caught:
        rows.task(name)
    assert said in caught.value.what and caught.value.where == f"{name}:2" and caught.value.fix


def test_an_empty_set_is_told(tmp_path: Path) -> None:
    name = file_of(tmp_path / "task.jsonl", [])
    with pytest.raises(UsageError, match="empty"):
        rows.task(name)
    with pytest.raises(UsageError):
        rows.task(str(tmp_path / "nowhere.jsonl"))


def test_a_sample_is_the_same_each_time(tmp_path: Path) -> None:
    found = rows.task(file_of(tmp_path / "t.jsonl", [{"prompt": f"q{n}", "expected": "x"} for n in range(50)]))
    once, again = rows.sample(found, 7, 42), rows.sample(found, 7, 42)
    assert [row.line for row in once] == [row.line for row in again] and len(once) == 7
    assert rows.sample(found, None, 42) is found


def conversation(question: str, answer: str) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


TRAIN = [conversation(f"How do I reset device number {n} after the update?", f"Hold the button for {n} seconds.")
         for n in range(3, 20)]  # fmt: skip


def test_rows_that_were_trained_on_are_found(workspace: Workspace, tmp_path: Path) -> None:
    run = run_folder(workspace, "a-1")
    held = [conversation("What is the capital of Norway?", "It is Oslo."), TRAIN[2]]
    # TRAIN[2] stands twice in the source: once for training, once held out. Norway stands there once: no leak.
    source = Path(file_of(tmp_path / "train.jsonl", [*TRAIN, *held]))
    (run.data / "held_out.jsonl").write_bytes(lines(held))
    write_json(run.data / "data.json", {"sources": [{"path": str(source), "bytes": source.stat().st_size}]})
    found = leaks.check(run, run.data / "held_out.jsonl", held_out=True)
    assert found.checked and found.same == {2}
    assert [(f.kind, f.level, f.lines) for f in found.findings if f.level == "error"] == [("trained_on", "error", [2])]

    asked = tmp_path / "task.jsonl"
    other = conversation("How do I reset device number 5 after the update?", "Please call us on Monday morning.")
    file_of(asked, [TRAIN[0], other, conversation("Name a bird that cannot fly, please.", "The kiwi cannot.")])
    found = leaks.check(run, asked, held_out=False)
    assert found.same == {1}
    assert {f.kind: f.lines for f in found.findings} == {"trained_on": [1], "same_prompt": [2]}


def test_training_data_that_changed_is_no_silent_pass(workspace: Workspace, tmp_path: Path) -> None:
    run = run_folder(workspace, "a-1")
    source = Path(file_of(tmp_path / "train.jsonl", [*TRAIN]))
    write_json(run.data / "data.json", {"sources": [{"path": str(source), "bytes": source.stat().st_size + 1}]})
    found = leaks.check(run, source, held_out=False)
    assert not found.checked and [f.kind for f in found.findings] == ["leak_not_checked"]


def test_a_store_survives_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "cache" / "s.jsonl"
    store = Store(path)
    results = {
        key: {"key": key, "text": text, "tokens": 1, "ended": True, "ids": [1]}
        for key, text in (("a", "один"), ("b", "2"))
    }
    for result in results.values():
        store.add(result)
    store.close()
    os.truncate(path, path.stat().st_size - 5)
    again = Store(path)
    assert list(again.results) == ["a"]
    again.add(results["b"])
    again.close()
    assert Store(path).results == results


def test_a_fingerprint_changes_with_the_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from engine.evaluate import store

    (tmp_path / "config.json").write_text("{}")
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(bytes(range(256)) * 400)
    (tmp_path / "README.md").write_text("does not matter")
    small = fingerprint(tmp_path)
    (tmp_path / "README.md").write_text("at all")
    assert fingerprint(tmp_path) == small
    monkeypatch.setattr(store, "WHOLE", 1000)
    large = fingerprint(tmp_path)
    info = weights.stat()
    content = bytearray(weights.read_bytes())
    content[50_000] ^= 1
    weights.write_bytes(content)
    os.utime(weights, ns=(info.st_atime_ns, info.st_mtime_ns))
    assert fingerprint(tmp_path) != large


FUNCTIONS = """
def polite(answer, row):
    print("noise on standard output")
    return "please" in answer

def breaks(answer, row):
    if row["expected"] == "bad":
        raise KeyError("no such thing")
    return 1.0

def wrong(answer, row):
    return 7
"""


def _results(said: dict[str, dict[str, str]]) -> dict[str, object]:
    roles = {
        role: {"rows": {key: {"answer": {"text": text}} for key, text in texts.items()}} for role, texts in said.items()
    }
    return {"roles": roles}


def test_the_users_function_scores_in_a_process_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(FUNCTIONS)
    asked = rows.task(file_of(tmp_path / "t.jsonl", [{"prompt": f"q{n}", "expected": e} for n, e in enumerate("abc")]))
    asked[1].expected = "bad"
    texts = {row.id: "yes please" for row in asked}
    results = _results({"base": dict.fromkeys(texts, "no"), "tuned": texts})
    scores = Scores()
    user_function.score(scores, "task", asked, results, "m.py:polite", tmp_path)
    metric = scores.get("polite")
    assert metric is not None and (metric.base.value, metric.tuned.value, metric.tuned.n) == (0, 1, 3)
    user_function.score(scores, "task", asked, results, "m.py:breaks", tmp_path)
    metric = scores.get("breaks")
    assert metric is not None and metric.tuned.n == 2  # the rows that it could score are kept
    told = scores.findings[-1]
    assert told.kind == "metric_raised" and "KeyError: 'no such thing'" in told.detail and told.lines == [2]
    assert told.fix == f"correct it at {tmp_path / 'm.py'}:8"
    user_function.score(scores, "task", asked, results, "m.py:wrong", tmp_path)
    assert scores.get("wrong") is None and "between 0 and 1" in scores.findings[-1].detail


@pytest.mark.parametrize(
    ("text", "said"), [("def x(:", "SyntaxError"), ("1/0", "ZeroDivisionError"), ("y = 1", "no function f")]
)
def test_a_file_without_the_function_is_told(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "m.py").write_text(text)
    asked = rows.task(file_of(tmp_path / "t.jsonl", [{"prompt": "q", "expected": "a"}]))
    scores = Scores()
    results = _results({role: {asked[0].id: "x"} for role in ("base", "tuned")})
    user_function.score(scores, "task", asked, results, "m.py:f", tmp_path)
    assert not scores.metrics and said in scores.findings[0].detail and scores.findings[0].level == "error"
    with pytest.raises(UsageError, match="there is no"):
        user_function.locate("other.py:f", tmp_path)


def test_rows_that_a_metric_cannot_score_are_told_and_the_others_kept(tmp_path: Path) -> None:
    content = [
        {"prompt": "q", "expected": 4},
        {"prompt": "r", "expected": "no number"},
        {"prompt": "s", "expected": "5"},
    ]
    asked = rows.task(file_of(tmp_path / "t.jsonl", content))
    scores = Scores()
    results = _results({role: {row.id: "it is 4" for row in asked} for role in ("base", "tuned")})
    scoring.task(scores, "task", asked, results, ["numeric"], None)
    metric = scores.get("numeric")
    assert metric is not None and metric.tuned.n == 2 and metric.tuned.value == 0.5
    assert [(finding.kind, finding.lines) for finding in scores.findings] == [("bad_row", [2])]


def test_votes_are_blind_and_the_newest_counts(workspace: Workspace) -> None:
    run = run_folder(workspace, "a-1")
    evaluated(run)
    folder = gate.folder_of(run) / "step-10"
    pairs = reading.pairs(folder)
    assert len(pairs) == 12 and {pair.tuned_is_a for pair in pairs} == {True, False}
    assert [pair.tuned_is_a for pair in pairs] == [pair.tuned_is_a for pair in reading.pairs(folder)]
    for pair in pairs:
        assert ("tuned" in pair.a) == pair.tuned_is_a and ("tuned" in pair.b) != pair.tuned_is_a
        reading.vote(folder, pair, "a" if pair.tuned_is_a else "b")
    reading.vote(folder, pairs[0], "same", "cannot tell")
    reading.vote(folder, pairs[1], "bad")
    result = reading.summary(folder)
    assert result is not None
    assert (result["tuned"], result["base"], result["same"], result["bad"]) == (10, 0, 1, 1)
    assert result["p"] == pytest.approx(2 / 1024) and result["low"] < 1 and result["share"] == 1
    assert result["notes"] == [{"row": "held_out:1", "note": "cannot tell", "won": "same"}]
    assert "tuned better in 10" in result["text"]


def test_words_that_differ_are_marked() -> None:
    one, other = wording.marked("the red house", "the blue house")
    assert one == [("the ", False), ("red", True), (" house", False)]
    assert other == [("the ", False), ("blue", True), (" house", False)]
    assert wording.marked("", "x") == ([], [("x", True)])


def test_the_gates_word_for_whoever_merges(workspace: Workspace) -> None:
    run = run_folder(workspace, "a-1")
    assert gate.require(run, 10) is None  # no gates, no word
    run = run_folder(workspace, "a-2", gates=["exact_match >= 0.5"])
    assert "ftui eval a-2" in str(gate.require(run, 10))
    evaluated(run, passed=False)
    with pytest.raises(GateError, match=r"exact_match >= 0\.5") as caught:
        gate.require(run, 10)
    assert caught.value.exit_code == 4 and "--ignore-gate" in str(caught.value.fix)
    assert gate.word(run, 20)["state"] == "missing"  # another step was not evaluated
    run = run_folder(workspace, "a-3", gates=["exact_match >= 0.5"])
    evaluated(run, passed=True)
    assert gate.require(run, 10) is None and gate.word(run, None)["state"] == "passed"


def test_runs_beside_each_other(workspace: Workspace) -> None:
    one, other = run_folder(workspace, "a-1", lora_r=8), run_folder(workspace, "a-2", lora_r=16, output_dir="/x")
    evaluated(one, right=2)
    evaluated(other, right=11)
    for run, scale in ((one, 2.0), (other, 1.0)):
        journal: list[dict[str, object]] = [{"event": "start", "step": 0, "trainable_parameters": 100}]
        journal += [
            {"event": "log", "step": s, "loss": scale / s, "step_time_s": 0.5, "tokens_per_s": 100.0 * s}
            for s in range(1, 7)
        ]
        # a resume repeats the steps 5 and 6 with other values, and the newest count
        journal += [{"event": "log", "step": s, "loss": 9.0, "attempt": 2, "step_time_s": 0.5} for s in (5, 6)]
        journal += [
            {"event": "eval", "step": 3, "eval_loss": scale},
            {"event": "eval", "step": 6, "eval_loss": scale * 2},
        ]
        run.journal.write_bytes(lines(journal))
    document = compare([one, other])
    assert document["settings"] == [{"key": "lora_r", "values": [8, 16]}]
    assert document["curves"][0]["loss"] == [2.0, 1.0, 2 / 3, 0.5, 9.0, 9.0]
    row = document["runs"][1]
    assert (row["best_eval_loss"], row["best_eval_step"], row["seconds"], row["gate"]) == (1.0, 3, 4.0, True)
    [pair] = [pair for pair in document["paired"] if pair["metric"] == "exact_match"]
    assert pair["rows"] == 12 and pair["value"] == pytest.approx(9 / 12) and pair["verdict"] == "better"


def test_a_damaged_result_is_computed_again(tmp_path: Path) -> None:
    good = [
        {"key": "a", "nll": 1.5, "tokens": 3, "correct": 2},
        {"key": "b", "text": "x", "tokens": 1, "ended": True, "ids": [1]},
        {"key": "c", "said": None},
    ]
    bad = [
        {"key": "d", "nll": None, "tokens": 3, "correct": 2},
        {"key": "e", "nll": 1.5, "tokens": 3, "correct": ["a"]},
        {"key": "f", "text": 5, "tokens": 1, "ended": True, "ids": [1]},
        {"key": [], "said": "A"},
        {"key": "g"},
    ]
    path = tmp_path / "store.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in [*bad, *good, []]))
    assert set(Store(path).results) == {"a", "b", "c"}
