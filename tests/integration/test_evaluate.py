"""The models of an evaluation: losses as the trainer's, answers as `generate`'s, nothing computed twice."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from engine.errors import UsageError
from engine.evaluate import child, subject
from engine.evaluate.run import Evaluator, Wishes
from engine.journal import read_all
from engine.workspace import RunFolder, Workspace
from tests.support import evaluating

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """One finished run for all tests of this file."""
    return evaluating.finished_run(Workspace(tmp_path_factory.mktemp("eval")).prepare())


@pytest.fixture
def run(made: RunFolder, tmp_path: Path) -> RunFolder:
    """A copy of it, of this test's own."""
    root = made.path.parents[1]
    shutil.copytree(root, tmp_path / "ws")
    return RunFolder(tmp_path / "ws" / "runs" / made.name)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child's work in this process."""
    monkeypatch.setattr(child, "run", evaluating.in_process)


def evaluate(run: RunFolder, **wishes: Any) -> Any:
    workspace = Workspace(run.path.parents[1])
    wishes.setdefault("regression", False)
    return Evaluator(workspace, subject.find(workspace, run.name), Wishes(**wishes)).run()


def _models(run: RunFolder) -> tuple[Any, Any]:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    base = AutoModelForCausalLM.from_pretrained(run.path.parents[1] / "base").eval()
    return PeftModel.from_pretrained(base, run.final).eval(), AutoTokenizer.from_pretrained(run.final)


@pytest.mark.usefixtures("quick")
def test_the_held_out_loss_is_the_trainers(run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from datasets import load_from_disk
    from trl import SFTConfig, SFTTrainer

    from engine.evaluate import loss
    from engine.evaluate.statistics import TrainerLoss

    model, tokenizer = _models(run)
    rows = load_from_disk(str(run.data / "eval"))
    args = SFTConfig(
        output_dir=str(tmp_path / "out"), use_cpu=True, bf16=False, per_device_eval_batch_size=5, report_to=[],
        disable_tqdm=True, dataset_kwargs={"skip_prepare_dataset": True}, gradient_checkpointing=False,
    )  # fmt: skip
    trainer = SFTTrainer(model=model, args=args, train_dataset=rows, eval_dataset=rows, processing_class=tokenizer)
    expected = {"tuned": trainer.evaluate()["eval_loss"]}
    with model.disable_adapter():
        expected["base"] = trainer.evaluate()["eval_loss"]
    pairs = [(row["input_ids"], row["labels"]) for row in rows]
    for pieces in (loss.LOGITS_BYTES, 1):  # all logits at once, and one position at a time
        monkeypatch.setattr(loss, "LOGITS_BYTES", pieces)
        got: dict[int, loss.Scored] = {}
        loss.score(model, pairs, None, got.__setitem__, tokens_a_batch=300)
        found = [got[number] for number in range(len(pairs))]
        value = TrainerLoss([one.nll for one in found], [one.tokens for one in found], 5).value
        assert value == pytest.approx(expected["tuned"], abs=1e-6)
    document = evaluate(run, answers=False).document
    for role, value in expected.items():
        assert document[role]["eval_loss"] == pytest.approx(value, abs=1e-6)
    assert abs(expected["base"] - expected["tuned"]) > 0.01  # else it would show nothing


def test_logits_are_cut_into_pieces(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from engine.evaluate import loss

    model, _tokenizer = _models(run)
    widest = []
    original = torch.nn.functional.cross_entropy

    def watched(values: torch.Tensor, *rest: Any, **more: Any) -> torch.Tensor:
        widest.append(values.numel())
        return original(values, *rest, **more)

    monkeypatch.setattr(loss, "LOGITS_BYTES", 264 * 12 * 20)  # twenty positions of one row
    monkeypatch.setattr(loss.functional, "cross_entropy", watched)
    ids = list(range(1, 201))
    loss.score(model, [(ids, ids)] * 3, None, lambda _n, _s: None)
    assert max(widest) <= 264 * 20 and len(widest) > 30


def test_batched_answers_are_those_of_generate(run: RunFolder) -> None:
    import torch

    from engine.evaluate import generate

    model, _tokenizer = _models(run)
    torch.manual_seed(3)
    prompts = [torch.randint(0, 256, (length,)).tolist() for length in (1, 2, 3, 5, 8, 13, 40, 77, 120, 7, 7, 30)]
    stop = [257, 10]

    def alone(prompt: list[int]) -> list[int]:
        out = model.generate(
            input_ids=torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=24, do_sample=False, eos_token_id=stop, pad_token_id=258, use_cache=True,
        )  # fmt: skip
        return generate.cut(out[0, len(prompt) :].tolist(), stop)

    for adapted in (True, False):
        got: dict[int, list[int]] = {}
        if adapted:
            expected = [alone(prompt) for prompt in prompts]
            generate.answer(model, prompts, max_new_tokens=24, stop=stop, pad=258, done=got.__setitem__, most_rows=5)
            tuned = expected
        else:
            with model.disable_adapter():
                expected = [alone(prompt) for prompt in prompts]
                generate.answer(model, prompts, max_new_tokens=24, stop=stop, pad=258, done=got.__setitem__)
            assert expected != tuned
        assert [got[number] for number in range(len(prompts))] == expected


@pytest.mark.usefixtures("quick")
def test_both_models_get_the_same_inputs_and_a_repetition_costs_nothing(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluation = evaluate(run, regression=True, gates=["eval_loss < base + 100", "forgetting <= 100 %"])
    document = evaluation.document
    assert document["passed"] is True and evaluation.code == 0
    stores = {
        role: [line for path in paths for line in read_all(path)]
        for role, paths in {
            "base": (run.path.parents[1] / "cache" / "evaluate").glob("*.jsonl"),
            "tuned": (run.path / "cache" / "evaluate").glob("*.jsonl"),
        }.items()
    }
    # A key is the hash of the very tokens that were put in, so the same keys are the same inputs.
    keys = {role: sorted(line["key"] for line in lines) for role, lines in stores.items()}
    assert keys["base"] == keys["tuned"] and len(keys["base"]) > 100
    answers = {role: {line["key"]: line.get("text") for line in lines} for role, lines in stores.items()}
    assert answers["base"] != answers["tuned"]
    for name in ("report.json", "report.md", "report.html", "rows.jsonl"):
        assert (evaluation.folder / name).stat().st_size > 500
    assert evaluation.folder == run.path / "evaluation" / "step-20"
    monkeypatch.setattr(child, "run", lambda *words: pytest.fail("it was computed again"))
    again = evaluate(run, regression=True)
    assert again.document["tuned"] == document["tuned"]


def test_an_interrupted_evaluation_goes_on(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    original = child.run

    class Interrupted(Exception):
        pass

    def dies(job: dict[str, Any], *rest: Any) -> Any:
        for event in original(job, *rest):
            if event["event"] == "phase" and event.get("role") == "tuned":
                raise Interrupted
            yield event

    monkeypatch.setattr(child, "run", dies)
    with pytest.raises(Interrupted):
        evaluate(run)
    store = next((run.path.parents[1] / "cache" / "evaluate").glob("*.jsonl"))
    kept = store.read_bytes()
    assert len(kept.splitlines()) >= len(evaluating.QUESTIONS)
    store.write_bytes(kept[: len(kept) - 20])  # the last line is torn, as a power cut leaves it
    loads = []

    def watched(job: dict[str, Any], *rest: Any) -> Any:
        for event in original(job, *rest):
            loads.append(event.get("role") if event["event"] == "phase" else None)
            yield event

    monkeypatch.setattr(child, "run", watched)
    document = evaluate(run).document
    assert document["metrics"] and "tuned" in loads
    grown = [json.loads(line)["key"] for line in store.read_bytes().splitlines() if line.endswith(b"}")]
    assert len(grown) == len(set(grown)) == len(kept.splitlines())  # only what was torn was made again


@pytest.mark.usefixtures("quick")
def test_an_adapter_of_another_base_is_told(run: RunFolder, tmp_path: Path) -> None:
    other = evaluating.base_model(tmp_path / "other", hidden=48)
    workspace = Workspace(run.path.parents[1])
    with pytest.raises(Exception) as caught:
        Evaluator(workspace, subject.find(workspace, run.name, base=str(other)), Wishes(regression=False)).run()
    assert "does not fit this base" in str(caught.value)
    # The base's part is kept all the same.
    assert any(read_all(path) for path in (workspace.cache_dir / "evaluate").glob("*.jsonl"))


@pytest.mark.usefixtures("quick")
def test_prompts_longer_than_the_context_are_told_and_the_others_kept(run: RunFolder, tmp_path: Path) -> None:
    rows = [
        {"prompt": "x" * 400, "expected": "y"},
        {"prompt": "short?", "expected": "y"},
        {"prompt": "z", "expected": "y"},
    ]
    file = evaluating.write_lines(tmp_path / "task.jsonl", rows)
    document = evaluate(run, data=str(file), metrics=["contains"]).document
    told = [finding for finding in document["findings"] if finding["kind"] == "too_long"]
    assert [finding["lines"] for finding in told] == [[1]]
    metric = next(metric for metric in document["metrics"] if metric["name"] == "contains")
    assert metric["rows"] == 2 and metric["delta"]["verdict"] == "not_enough_rows"


@pytest.mark.usefixtures("quick")
def test_a_merged_model_is_evaluated_like_its_adapter(run: RunFolder, tmp_path: Path) -> None:
    model, tokenizer = _models(run)
    merged = tmp_path / "merged"
    model.merge_and_unload().save_pretrained(merged)
    tokenizer.save_pretrained(merged)
    adapter = evaluate(run).document
    workspace = Workspace(run.path.parents[1])
    with pytest.raises(UsageError, match="names the base"):
        subject.find(workspace, str(merged))
    found = subject.find(workspace, str(merged), run=run.name)
    document = Evaluator(workspace, found, Wishes(regression=False)).run().document
    assert document["base"] == adapter["base"]
    assert document["tuned"]["eval_loss"] == pytest.approx(adapter["tuned"]["eval_loss"], abs=1e-5)
    assert document["label"] == "merged"


def test_samples_are_greedy_and_never_end_the_training(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    import torch

    from engine.evaluate import generate, samples
    from engine.evaluate.models import make_job
    from engine.train.samples import attach

    model, tokenizer = _models(run)
    model.train()
    callbacks: list[Any] = []
    trainer = SimpleNamespace(add_callback=callbacks.append)
    attach(make_job({"eval_samples": 3, "eval_max_new_tokens": 9, "task": "sft"}, str(run.path)), trainer, tokenizer)
    [callback] = callbacks
    args, state = SimpleNamespace(device=torch.device("cpu")), SimpleNamespace(global_step=5)
    before = torch.random.get_rng_state()
    callback.on_evaluate(args, state, None, model=model)
    assert torch.equal(before, torch.random.get_rng_state()) and model.training  # the training goes on as without it
    made = samples.read(run)
    assert [prompt.prompt for prompt in made] == evaluating.QUESTIONS[:3]
    prompts = [
        tokenizer.apply_chat_template([{"role": "user", "content": q}], add_generation_prompt=True, return_dict=True)
        for q in evaluating.QUESTIONS[:3]
    ]
    got: dict[int, list[int]] = {}
    generate.answer(
        model.eval(), [p["input_ids"] for p in prompts], max_new_tokens=9, stop=[257], pad=258, done=got.__setitem__
    )
    expected = [tokenizer.decode(got[n], skip_special_tokens=True) for n in range(3)]
    assert [prompt.answers for prompt in made] == [((5, text),) for text in expected]
    broken = SimpleNamespace(training=True, eval=lambda: None, train=lambda on: None)
    callback.on_evaluate(args, state, None, model=broken)
    assert callback.off
    nothing: list[Any] = []
    trainer.add_callback = nothing.append
    attach(make_job({"eval_samples": 0}, str(run.path)), trainer, tokenizer)
    assert nothing == []
