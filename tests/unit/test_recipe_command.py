"""`ftui recipe`."""

from __future__ import annotations

import dataclasses
import json

import pytest

from engine import recipe
from tests.support.recipes import BASE, furnish
from tui import cli


@pytest.fixture
def here(tmp_path, monkeypatch):
    furnish(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys, *argv):
    code = cli.main(["recipe", *argv])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_findings_for_people(here, capsys):
    (here / "r.yaml").write_text(BASE + "learning_rate: -1\nlora_rr: 8\n")
    code, out, err = run(capsys, "check", "r.yaml", "seed=x")
    assert code == 2
    assert err == ""
    lines = out.splitlines()
    assert "r.yaml:3: error: learning_rate is -1; it must be > 0, <= 1" in lines
    assert "seed=x (command line): error: seed wants a whole number, not 'x'" in lines
    assert lines[lines.index("r.yaml:4: error: 'lora_rr' is not a recipe key") + 1] == "  fix  did you mean 'lora_r'?"
    assert lines[-1] == "3 errors"
    assert "\x1b" not in out


def test_a_good_recipe(here, capsys):
    (here / "r.yaml").write_text(BASE)
    assert run(capsys, "check", "r.yaml") == (0, "r.yaml can be run\n", "")


def test_a_recipe_that_a_run_would_refuse_is_not_said_to_be_runnable(here, capsys):
    (here / "r.yaml").write_text(BASE + "report_to: [wandb]\n")
    code, out, _err = run(capsys, "check", "r.yaml")
    assert (code, out.splitlines()[0]) == (0, "r.yaml:3: warning: report_to: this version cannot do that yet")
    assert out.splitlines()[-1] == "r.yaml is in order, but a run of it is refused until 1 warning is put right"


@pytest.mark.parametrize("argv", [["check", "r.yaml", "--json"], ["--json", "check", "r.yaml"]])
def test_json(here, capsys, argv):
    (here / "r.yaml").write_text(BASE + "lora_r: 8\n")
    code, out, err = run(capsys, *argv)
    document = json.loads(out)
    assert (code, err, document["findings"], document["recipe"]["lora_r"]) == (0, "", [], 8)
    assert document["recipe"]["dataset_path"] == str(here / "train.jsonl")


def test_json_says_what_is_wrong_before_the_long_recipe(here, capsys):
    (here / "r.yaml").write_text(BASE)
    _code, out, _err = run(capsys, "check", "r.yaml", "--json")
    assert list(json.loads(out)) == ["findings", "recipe"]


def test_the_recipe_shown_is_the_one_that_would_run_here(here, capsys, monkeypatch):
    from engine.hardware import gpus

    (here / "r.yaml").write_text(BASE)
    assert json.loads(run(capsys, "check", "r.yaml", "--json")[1])["recipe"]["bf16"] is False  # no GPU here
    cards = [gpus.Gpu(index=n, uuid=f"GPU-{n}", name="Card", capability="7.5") for n in range(2)]
    monkeypatch.setattr(gpus.Probe, "list", lambda self: cards)
    for capability, bf16 in (("7.5", False), ("8.0", True)):
        cards[:] = [dataclasses.replace(card, capability=capability) for card in cards]
        checked = json.loads(run(capsys, "check", "r.yaml", "--json")[1])["recipe"]
        assert cli.main(["run", "r.yaml", "--dry-run", "--json"]) == 0
        dry = json.loads(capsys.readouterr().out)["recipe"]
        assert dry == checked
        assert (dry["bf16"], dry["num_gpus"]) == (bf16, 2)
    code, out, _err = run(capsys, "check", "r.yaml", "global_batch_size=2")
    assert code == 2 and "on 2 GPU" in out, "what only this machine contradicts is found, too"


def test_a_recipe_that_is_not_there(here, capsys):
    code, out, err = run(capsys, "check", "demos", "--json")
    assert code == 2
    assert json.loads(out)["error"]["kind"] == "no_such_recipe"
    assert "demo" in err


def test_list(here, capsys):
    code, out, _err = run(capsys, "list", "--json")
    rows = json.loads(out)
    assert code == 0
    assert [row["name"] for row in rows] == recipe.names()
    assert all(row["summary"] for row in rows)
    assert "demo" in run(capsys, "list")[1]


@pytest.mark.parametrize("method", ["lora", "qlora", "full"])
def test_new_writes_a_recipe_that_is_right(here, capsys, method):
    code, out, _err = run(capsys, "new", "mine", "--method", method, "--json")
    assert (code, json.loads(out)) == (0, {"path": str(here / "mine.yaml"), "written": True})
    assert recipe.load(here / "mine.yaml").recipe.method == method
    assert "#" in (here / "mine.yaml").read_text()
    assert run(capsys, "check", "mine.yaml", "model_name_or_path=model")[0] == 0


def test_new_overwrites_nothing(here, capsys):
    (here / "mine.yaml").write_text("precious\n")
    (here / "link.yaml").symlink_to(here / "nowhere")
    for name in ("mine", "link", "mine.yaml"):
        code, _out, err = run(capsys, "new", name)
        assert code == 2
        assert "--out" in err
    assert (here / "mine.yaml").read_text() == "precious\n"
    assert not (here / "nowhere").exists()


def test_new_elsewhere_or_not_at_all(here, capsys):
    assert run(capsys, "new", "--out", "sub.yml")[0] == 0
    assert (here / "sub.yml").exists()
    code, out, _err = run(capsys, "new", "other", "--dry-run")
    assert code == 0
    assert "method: lora" in out
    assert not (here / "other.yaml").exists()
    code, _out, err = run(capsys, "new", "--out", "no/such/folder.yaml")
    assert code == 2
    assert "folder" in err
