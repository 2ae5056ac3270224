"""`ftui data prepare` on files as they are: the way from a folder to a recipe; questions; what goes wrong."""

from __future__ import annotations

import gzip
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from engine import recipe, settings
from tests.support.data import talk, write_rows
from tests.support.models import make_model
from tui import cli

TEXT = "ripe tomato salt oil time warm place near window light morning rain river stone bread"
WORDS = TEXT.split()


def row(n):
    words = [WORDS[(at * (n + 2) + at * at + n) % len(WORDS)] for at in range(18)]
    return talk(f"Question {n} about {words[0]} and {' '.join(words[1:6])}?", f"{n} {' '.join(words[6:])}")


@pytest.fixture
def messy(tmp_path, monkeypatch):
    """A folder of files of several forms, some broken."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "messy"
    (folder / "old").mkdir(parents=True)
    texts = [(r["messages"][0]["content"], r["messages"][1]["content"]) for r in map(row, range(100))]
    write_rows(folder / "a.jsonl", [row(n) for n in range(40)] + ["{broken"])
    share = [{"conversations": [{"from": "human", "value": q}, {"from": "gpt", "value": a}]} for q, a in texts[40:60]]
    (folder / "b.json").write_text(json.dumps(share))
    (folder / "old" / "c.csv").write_text(
        "question;answer\n" + "".join(f"{q};{a}\n" for q, a in texts[60:75]), "utf-8-sig"
    )
    with gzip.open(folder / "old" / "d.jsonl.gz", "wt") as file:
        for q, a in texts[75:90]:
            mail = " Write to anna.k@shop.example.org or call +7 916 123 45 67."
            file.write(json.dumps({"instruction": q, "input": "", "output": a + mail}) + "\n")
    write_rows(folder / "e.jsonl", [{"text": "a plain text of some length, and no conversation"}])
    write_rows(folder / "test.jsonl", [row(n) for n in range(90, 100)])
    (folder / "picture.json").write_bytes(b"\x89PNG\r\n\x1a\n" + b"\0" * 50)
    (folder / "notes.txt").write_text("not data")
    make_model(tmp_path / "model")
    return folder


def run(capsys, *argv):
    code = cli.main(["data", "prepare", *argv, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_folder_of_messy_files_becomes_a_recipe(messy, capsys):
    columns = ("--keep-near", "--column", "prompt=question", "--column", "completion=answer")
    code, report = run(capsys, "messy", "learning_rate=3e-4", "--model", "model", "--out", "mine.yaml", *columns)
    assert code == 0 and Path(report["recipe"]) == Path("mine.yaml").absolute()
    rows = report["rows"]
    assert rows["unusable"] == 1 and rows["dropped"]["other_form"] == 1 and 5 < rows["eval"] <= 10
    assert rows["train"] + rows["eval"] + sum(rows["dropped"].values()) == 40 + 20 + 15 + 15 + 1 + 10
    assert report["personal_data"] == {"pii.email": 15, "pii.phone_ru": 15} and report["border"]["people"] == {"RU": 15}
    loaded = recipe.load("mine.yaml")
    assert loaded.findings == [] and not [f for f in recipe.check(loaded) if f.key == "dataset_path"]
    values = loaded.recipe.values
    assert values["dataset_path"] == str(Path("mine-data/train.jsonl").absolute())
    assert values["learning_rate"] == 3e-4 and values["max_length"] == report["tokens"]["suggested"]["max_length"]
    text = Path("mine-data/train.jsonl").read_text()
    assert "anna.k" not in text and "person1@mail.invalid" in text and '"prompt"' not in text
    code, answer = run(capsys, "messy", "--model", "model", "--out", "mine.yaml")
    assert code == 2 and answer["error"]["kind"] == "exists"


def test_what_is_left_out_says_how_to_see_or_keep_it(messy, capsys):
    assert cli.main(["data", "prepare", "messy", "--dry-run"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    said = [line for line in lines if line.startswith("left out:")]
    assert any("unusable" in line and line.endswith("(`ftui data check` names their lines)") for line in said)
    assert any("near_duplicate" in line and line.endswith("(--keep-near keeps them)") for line in said)


def test_names_of_what_is_written(messy, capsys):
    code, report = run(capsys, "messy/a.jsonl")
    assert code == 0 and report["recipe"] is None and Path(report["out"]) == Path("a-data").absolute()
    code, report = run(capsys, "messy/a.jsonl", "messy/b.json", "--model", "team/none", "--out", "deep/ab.yaml")
    assert code == 0 and report["tokens"] is None and report["rows"]["read"] == 61
    assert "max_length" not in Path("deep/ab.yaml").read_text()
    for argv in (["messy", "--out", "x.yaml"], ["messy", "--out", "a-data"], ["lora-sft", "--model", "model"]):
        assert run(capsys, *argv)[0] == 2, argv


def test_columns_that_could_be_mapped_are_named(messy, capsys):
    assert cli.main(["data", "prepare", "messy", "--out", "one"]) == 0
    assert "--column prompt=question --column completion=answer" in capsys.readouterr().err.replace("\n", " ") + str(
        json.loads(Path("one/report.json").read_text())["findings"]
    )


def test_preferences_become_a_recipe_for_them(messy, capsys):
    pairs = [{"prompt": f"Question {n}?", "chosen": f"good answer {n}", "rejected": f"bad one {n}"} for n in range(30)]
    write_rows(Path("pairs.jsonl"), pairs)
    code, _report = run(capsys, "pairs.jsonl", "--model", "model", "--keep-near")
    assert code == 0 and recipe.load("pairs.yaml").recipe.task == "dpo"


def test_the_border_of_this_server(messy, capsys):
    settings.save(country="DE")
    code, report = run(capsys, "messy/old")
    assert code == 0 and report["border"]["crosses"] == ["RU"]
    assert "stands in DE" in Path("old-data/report.md").read_text()


def test_the_questions_are_asked_once(messy):
    """In a real terminal: a pseudo-terminal of its own."""
    import pty

    def ask(out, typed):
        main, other = pty.openpty()
        command = [sys.executable, "-m", "tui", "data", "prepare", "messy/a.jsonl", "--out", out]
        process = subprocess.Popen(command, stdin=other, stdout=other, stderr=other, env={**os.environ, "TERM": "dumb"})
        os.close(other)
        os.write(main, typed.encode())
        said = b""
        while True:
            try:
                piece = os.read(main, 65536)
            except OSError:
                break
            if not piece:
                break
            said += piece
        os.close(main)
        assert process.wait(60) == 0, said.decode()
        return said.decode()

    assert "Under which license?" in ask("one", "our own shop\nMIT\n\n")
    statement = json.loads(Path("one/report.json").read_text())["statement"]
    assert statement == {"source": "our own shop", "license": "MIT", "right_to_train": ""}
    assert "Under which license?" not in ask("two", "")
    assert json.loads(Path("two/report.json").read_text())["statement"] == statement


def test_a_full_disk_leaves_nothing(messy):
    """Files may not grow beyond a few blocks: as on a disk that is full."""
    write_rows(Path("big.jsonl"), [row(n) for n in range(900)])

    def small() -> None:
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))

    command = [sys.executable, "-m", "tui", "data", "prepare", "big.jsonl", "--out", "full", "--keep-near", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=small, timeout=60)
    answer = json.loads(done.stdout)
    assert done.returncode == 1 and answer["error"]["kind"] == "unwritable" and answer["error"]["fix"]
    assert not [path.name for path in Path().iterdir() if "full" in path.name]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody who may not read")
def test_a_file_that_may_not_be_read(messy):
    Path("messy/a.jsonl").chmod(0)
    script = (
        "import os, sys; from tui import cli; import engine.data.check, engine.data.prepare, tui.commands.data; "
        "os.setgroups([]); os.setgid(65534); os.setuid(65534); sys.exit(cli.main(sys.argv[1:]))"
    )
    for path in (messy, *messy.parents):
        if str(path) != "/" and path.is_relative_to("/tmp"):
            path.chmod(0o755)
    for verb in ("check", "preview", "prepare"):
        command = [sys.executable, "-c", script, "data", verb, "messy/a.jsonl", "--json"]
        env = {**os.environ, "FTUI_HOME": "/nowhere", "XDG_CONFIG_HOME": "/nowhere"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env)
        assert "Traceback" not in done.stderr, done.stderr
        assert done.returncode == 2 and json.loads(done.stdout)["error"]["kind"] == "unreadable", done.stdout


def test_one_line_of_20_megabytes(messy):
    write_rows(Path("long.jsonl"), [row(1), talk("salt and pepper " * 1_250_000, "just do it then"), row(50)])

    def ftui(*argv):
        command = [sys.executable, "-m", "tui", "data", *argv, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0 and len(done.stdout) < 20_000, done.stderr
        return json.loads(done.stdout)

    findings = ftui("check", "long.jsonl")["findings"]
    assert [f["lines"] for f in findings if f["kind"] == "long_line"] == [[2]]
    assert ftui("preview", "long.jsonl", "--from", "2", "-n", "1")["rows"][0]["line"] == 2
