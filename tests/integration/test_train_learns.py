"""The demo recipe teaches the rule: loss and evaluation loss fall, and the tuned model answers by it."""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import pytest

from engine.files import write_json
from engine.recipe import find, load, resolve
from engine.train import builtin
from recipes.data.make_support import CODES
from tests.support.train import Runs, tiny_model

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]

FORM = re.compile(r"^\S.*[.,!] (Next step|Следующий шаг): .+ (Code|Код): (\w+)$", re.DOTALL)
QUESTIONS = 28


def answers(model: Any, tokenizer: Any, questions: list[str]) -> list[str]:
    """The model's most likely answers."""
    import torch

    tokenizer.padding_side = "left"
    batch = tokenizer(
        [
            tokenizer.apply_chat_template([{"role": "user", "content": q}], tokenize=False, add_generation_prompt=True)
            for q in questions
        ],
        return_tensors="pt",
        padding=True,
    )
    batch.pop("token_type_ids", None)
    with torch.no_grad():
        out = model.generate(**batch, max_new_tokens=90, do_sample=False, pad_token_id=tokenizer.pad_token_id)
    return [tokenizer.decode(row[batch["input_ids"].shape[1] :], skip_special_tokens=True) for row in out]


def adherence(said: list[str], codes: list[str]) -> tuple[float, float]:
    """Shares of the answers that have the form, and that have it with the right code."""
    found = [FORM.match(answer) for answer in said]
    form = sum(1 for match in found if match)
    right = sum(1 for match, code in zip(found, codes, strict=True) if match and match[3] == code)
    return form / len(said), right / len(said)


def test_the_demo_teaches_the_rule(train_runs: Runs) -> None:
    run = train_runs.make("demo")
    loaded = load(find("demo"), ["device=cpu"])
    write_json(run.resolved, {"format": 1, "recipe": resolve(loaded, num_gpus=0), "origin": loaded.origin})
    started = train_runs.start(run)
    assert started.finish(500) == 0, started.log()
    logs, evals = started.events("log"), started.events("eval")
    assert sum(e["loss"] for e in logs[-10:]) < 0.5 * sum(e["loss"] for e in logs[:10])
    assert [e["eval_loss"] for e in evals] == sorted((e["eval_loss"] for e in evals), reverse=True)
    assert evals[-1]["eval_loss"] < 0.7 * evals[0]["eval_loss"]

    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    held_out = [orjson.loads(line)["messages"] for line in (run.data / "held_out.jsonl").open("rb")][:QUESTIONS]
    questions = [row[0]["content"] for row in held_out]
    codes = [row[1]["content"].rsplit(" ", 1)[1] for row in held_out]
    assert set(codes) <= set(CODES.values()) and len(set(codes)) > 4
    path = tiny_model(train_runs.workspace)
    tokenizer = AutoTokenizer.from_pretrained(run.final)
    base = AutoModelForCausalLM.from_pretrained(path).eval()
    base_form, base_right = adherence(answers(base, tokenizer, questions), codes)
    tuned = PeftModel.from_pretrained(base, str(run.final)).eval()
    said = answers(tuned, tokenizer, questions)
    tuned_form, tuned_right = adherence(said, codes)
    assert (base_form, base_right) == (0, 0)
    assert tuned_form >= 0.85, said
    assert tuned_right >= 0.7, list(zip(questions, said, strict=True))  # one of eight codes by chance


def test_the_built_in_model_is_the_same_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtin, "STEPS", 4)  # the whole schooling is in `tiny_home`; its steps are all alike
    losses = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        losses.append(builtin.build(tmp_path / name))
    assert losses[0] == losses[1]
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("a", "b")]
    assert weights[0] == weights[1]


def test_a_builder_that_does_not_end_leaves_nothing_that_looks_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise MemoryError

    monkeypatch.setattr(builtin, "build", dies)
    with pytest.raises(MemoryError):
        builtin.model_path("builtin:tiny", tmp_path)
    assert [p.name for p in (tmp_path / "builtin").iterdir() if p.is_dir() and not p.name.startswith(".")] == []

    # Two that need it at once make it once, and the leftover is not in it.
    built = []

    def builds(folder: Path) -> None:
        built.append(folder)
        time.sleep(0.2)
        (folder / "config.json").write_text("{}")

    monkeypatch.setattr(builtin, "build", builds)
    with ThreadPoolExecutor(2) as pool:
        paths = set(pool.map(lambda _: builtin.model_path("builtin:tiny", tmp_path), range(2)))
    assert len(built) == len(paths) == 1
    assert [path.name for path in paths.pop().iterdir()] == ["config.json"]
