"""Preparing data: what is written, that it is the same each time, and that it is whole or not there."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys

import pytest

from engine.data import privacy, split
from engine.data.check import check
from engine.data.prepare import Wishes, prepare
from engine.errors import UsageError
from tests.bench import bench_data
from tests.support.data import talk, write_rows
from tui import cli

WORDS, WEIGHTS = bench_data.vocabulary()


def written(folder, name="train.jsonl"):
    return [json.loads(line) for line in (folder / name).read_text(encoding="utf-8").splitlines()]


def many(count, seed=1):
    import random

    rng = random.Random(seed)
    return [bench_data.line(bench_data.conversation(rng, WORDS, WEIGHTS, 15)).rstrip() for _ in range(count)]


def test_the_same_input_gives_the_same_bytes_and_is_left_alone(tmp_path):
    rows = [*many(150), "{broken", talk("mail anna@example.com", "or anna@example.com, please"), many(1)[0]]
    source = write_rows(tmp_path / "a.jsonl", rows)
    before = source.read_bytes()
    for name in ("one", "two"):
        report = prepare(Wishes([str(source)], share=0.1), tmp_path / name)
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert files == ["eval.jsonl", "report.json", "report.md", "train.jsonl"]
    assert all((tmp_path / "one" / f).read_bytes() == (tmp_path / "two" / f).read_bytes() for f in files)
    assert source.read_bytes() == before
    assert report["rows"] == {"read": 153, "unusable": 1, "dropped": {"duplicate": 1}, "train": 136, "eval": 15}
    for output in report["outputs"]:
        assert hashlib.sha256((tmp_path / "one" / output["path"]).read_bytes()).hexdigest() == output["sha256"]
    assert json.loads((tmp_path / "one" / "report.json").read_text()) == report
    again = check([str(tmp_path / "one" / "train.jsonl")], held_out=[str(tmp_path / "one" / "eval.jsonl")])
    assert [finding for finding in again.findings if finding.level != "note"] == []


def test_rows_become_tidy(tmp_path):
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "unit": "cup"}'}}
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    odd = talk("in\u200bvisible \x1b[31mred", "fine words")
    odd["messages"][0]["role"] = "User"
    parts = {"role": "user", "content": [{"type": "text", "text": "parts of text"}]}
    called = {"role": "assistant", "content": None, "tool_calls": [call]}
    rows = [
        odd,
        {"conversations": [{"from": "human", "value": "What is it?"}, {"from": "gpt", "value": "It is a test."}]},
        {"instruction": "Sum up.", "input": "A long text.", "output": "Short one."},
        {"prompt": "And this question?", "completion": "An answer to it."},
        {"messages": [parts, called], "tools": json.dumps([tool])},
    ]
    prepare(Wishes([str(write_rows(tmp_path / "a.jsonl", rows))], share=0), tmp_path / "out")
    found = written(tmp_path / "out")
    assert [list(row) for row in found] == [["messages"]] * 4 + [["messages", "tools"]]
    assert found[0]["messages"][0] == {"role": "user", "content": "invisible red"}
    assert found[2]["messages"][0]["content"] == "Sum up.\nA long text."
    assert found[4]["messages"][0]["content"] == "parts of text"
    assert found[4]["messages"][1]["tool_calls"][0]["function"]["arguments"] == {"a": 2, "unit": "cup"}
    assert found[4]["tools"] == [tool]


@pytest.mark.parametrize(
    "row",
    [
        {"text": "A text that is long enough."},
        {"prompt": "How long?", "completion": "Eight minutes."},
        {
            "prompt": [{"role": "user", "content": "Hi"}],
            "completion": [{"role": "assistant", "content": "Hello there"}],
        },
        {"prompt": "How long?", "chosen": "Eight minutes.", "rejected": "No idea."},
        {"chosen": "Q? Eight minutes.", "rejected": "Q? No idea."},
    ],
)
def test_other_forms_stay_what_they_are(row, tmp_path):
    prepare(Wishes([str(write_rows(tmp_path / "a.jsonl", [row]))], share=0), tmp_path / "out")
    assert written(tmp_path / "out") == [row]


def test_masks_are_the_same_within_a_row_and_hide_everything(tmp_path):
    question = "Write to anna.test@example.com or Anna.Test@example.com, call +7 900 000-01-23 or (212) 555-0142."
    answer = "I wrote to anna.test@example.com from 203.0.113.7; the card 4242 4242 4242 4242 is charged."
    source = write_rows(tmp_path / "a.jsonl", [talk(question, answer), talk("A clean row?", "Yes, it is one.")])
    report = prepare(Wishes([str(source)], share=0), tmp_path / "masked")
    first, second = (row["messages"] for row in written(tmp_path / "masked"))
    assert first[0]["content"] == (
        "Write to person1@mail.invalid or person1@mail.invalid, call [phone number 1] or [phone number 2]."
    )
    assert (
        first[1]["content"]
        == "I wrote to person1@mail.invalid from [IP address 1]; the card [card number 1] is charged."
    )
    assert not any(privacy.find(message["content"]) for message in first + second)
    assert report["personal_data"] == {
        "pii.credit_card": 1, "pii.email": 3, "pii.ip": 1, "pii.phone_ru": 1, "pii.phone_us": 1,
    }  # fmt: skip
    assert "anna" not in (tmp_path / "masked" / "report.md").read_text()
    assert prepare(Wishes([str(source)], share=0, privacy="drop"), tmp_path / "d")["rows"]["dropped"] == {"privacy": 1}
    prepare(Wishes([str(source)], share=0, privacy="keep"), tmp_path / "kept")
    assert written(tmp_path / "kept")[0]["messages"][1]["content"] == answer


def test_groups_stay_together_and_sources_give_their_share(tmp_path):
    rows = []
    for at, line in enumerate(many(300)):
        row = json.loads(line)
        rows.append({**row, "source": "ab"[at % 3 == 0], "conversation_id": at // 2})
    report = prepare(Wishes([str(write_rows(tmp_path / "a.jsonl", rows))], share=0.2), tmp_path / "out")
    held = {json.dumps(row["messages"]) for row in written(tmp_path / "out", "eval.jsonl")}
    sides = [json.dumps(row["messages"]) in held for row in rows]
    assert all(sides[at] == sides[at + 1] for at in range(0, 300, 2))
    assert sum(sides) == report["rows"]["eval"] == 60
    shares = report["by_source"]
    assert all(0.1 < counts["eval"] / (counts["eval"] + counts["train"]) < 0.3 for counts in shares.values())


def test_one_prompt_stays_on_one_side_whatever_its_answers(tmp_path):
    rows = [talk(f"Question of kind {'xyzuvw'[n % 6] * 3}?", line[100:160]) for n, line in enumerate(many(60))]
    prepare(Wishes([str(write_rows(tmp_path / "a.jsonl", rows))], share=0.2, drop_near=False), tmp_path / "out")
    sides = [
        {row["messages"][0]["content"] for row in written(tmp_path / "out", f"{n}.jsonl")} for n in ("train", "eval")
    ]
    assert sides[0] and sides[1] and not sides[0] & sides[1]


def test_a_row_keeps_its_side_when_others_are_added():
    groups = [f"g{n}" for n in range(200)]
    before = split.held_out(groups, [""] * 200, 0.1, 42)
    after = split.held_out([*groups, *[f"new{n}" for n in range(10)]], [""] * 210, 0.1, 42)
    assert sum(a != b for a, b in zip(before, after[:200], strict=True)) <= 4
    assert sum(before) == 20 and split.held_out(groups, [""] * 200, 0.1, 43) != before
    assert sum(split.held_out(["a", "b", "c"], ["", "", ""], 0.05, 1)) == 1


def test_a_given_evaluation_file_wins(tmp_path):
    rows = many(20)
    train, held_out = write_rows(tmp_path / "t.jsonl", rows), write_rows(tmp_path / "e.jsonl", [*many(3, 9), rows[4]])
    report = prepare(Wishes([str(train)], [str(held_out)]), tmp_path / "out")
    assert report["rows"]["dropped"] == {"train_eval_overlap": 1}
    assert (report["rows"]["train"], report["rows"]["eval"]) == (19, 4)


def test_what_cannot_be_prepared(tmp_path):
    mixed = write_rows(tmp_path / "mixed.jsonl", [talk("A question?", "An answer."), {"text": "Some text of its own."}])
    with pytest.raises(UsageError, match="together"):
        prepare(Wishes([str(mixed)]), tmp_path / "out")
    with pytest.raises(UsageError, match="no row"):
        prepare(Wishes([str(write_rows(tmp_path / "bad.jsonl", ["{"]))]), tmp_path / "out")
    with pytest.raises(UsageError, match="there already"):
        prepare(Wishes([str(mixed)]), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["home"]


def test_a_full_disk_leaves_nothing(tmp_path):
    """A limit on the size of files stands for the disk."""
    source = write_rows(tmp_path / "a.jsonl", many(400))
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000));"
        "from tui import cli; sys.exit(cli.main(sys.argv[1:]))"
    )
    recipe = tmp_path / "r.yaml"
    recipe.write_text(f"model_name_or_path: builtin:tiny\ndataset_path: {source}\n")
    argv = [sys.executable, "-c", code, "data", "prepare", str(recipe), "--out", str(tmp_path / "out")]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 1
    assert "cannot be written" in done.stderr and "Traceback" not in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir() if path.name not in ("home", "ft")) == ["a.jsonl", "r.yaml"]


def test_prepare_as_a_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "a.jsonl", many(40))
    (tmp_path / "my.yaml").write_text("model_name_or_path: builtin:tiny\ndataset_path: a.jsonl\nseed: 5\n")
    assert cli.main(["data", "prepare", "my.yaml", "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"]["eval"] == 2
    assert not (tmp_path / "my-data").exists()
    assert cli.main(["data", "prepare", "my.yaml", "--license", "CC-BY-4.0"]) == 0
    out = capsys.readouterr()
    assert "38 rows to train on, 2 for evaluation" in out.out
    assert "does not say: source, right_to_train" in out.err and "ftui run my.yaml dataset_path=" in out.err
    assert "CC-BY-4.0" in (tmp_path / "my-data" / "report.md").read_text()
    assert cli.main(["data", "prepare", "my.yaml"]) == 2
    assert cli.main(["data", "prepare", "my.yaml", "dataset_path=gone.jsonl", "--out", "x"]) == 2
