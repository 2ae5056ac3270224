"""`ftui plan`: its forms, exit codes, JSON and text."""

from __future__ import annotations

import json

import orjson
import pytest

from tui import cli

LLAMA = {"model": "meta-llama/Llama-3.1-8B", "method": "lora", "max_length": 512}


def run(capsysbinary, *argv):
    code = cli.main(["plan", *map(str, argv)])
    done = capsysbinary.readouterr()
    return code, done.out.decode(), done.err.decode()


def document(capsysbinary, *argv):
    code, out, _err = run(capsysbinary, "--json", *argv)
    return code, json.loads(out)


@pytest.mark.parametrize(
    ("argv", "code", "verdict"),
    [
        (("--method", "qlora", "--gpu", "RTX4090"), 0, "fits"),
        (("--method", "full", "--server", "1xH100"), 3, "no"),
        (("--method", "lora", "--gpu-memory-gb", "80"), 0, "fits"),
    ],
)
def test_a_model_and_a_method(capsysbinary, argv, code, verdict):
    got, result = document(capsysbinary, "--model", "Llama-3.1-8B", *argv)
    assert (got, result["verdict"]) == (code, verdict)


def test_the_result_has_the_fields_of_the_contract(capsysbinary):
    _code, result = document(capsysbinary, "--model", "Llama-3.1-8B", "--server", "8xH200", "--rows", "1000", "id=one")
    assert result["id"] == "one"
    card = result["per_gpu"]
    assert card["low_gb"] < card["allocated_gb"] < card["high_gb"]
    assert card["allocated_gb"] <= card["reserved_gb"] <= card["device_gb"]
    assert {"needs_gb", "phase"} <= set(card)
    parts = {"weights", "gradients", "optimizer", "activations", "logits", "transients", "overhead"}
    assert set(card["breakdown"]) == parts
    assert sum(v for k, v in card["breakdown"].items()) == pytest.approx(card["device_gb"], abs=0.05)
    assert {"base", "checkpoint", "checkpoints_kept", "merged"} <= set(result["disk"])
    assert {"tokens_per_s", "hours", "low", "high", "basis"} <= set(result["time"])
    assert {"server", "amount", "currency", "period", "basis"} <= set(result["money"][0])
    assert result["host_ram_gb"] > 0
    assert isinstance(result["advice"], list)


def test_from_answers_each_line_in_order_and_an_error_stops_nothing(tmp_path, capsysbinary):
    file = tmp_path / "cases.jsonl"
    lines = [
        orjson.dumps(LLAMA | {"id": "a", "gpu": "H100"}),
        b"{broken",
        b"",
        orjson.dumps(LLAMA | {"id": "b", "lora_r": -1}),
        b"[1]",
        orjson.dumps(LLAMA | {"id": "c", "gpu": "RTX4090", "method": "full"}),
    ]
    file.write_bytes(b"\n".join(lines))
    code, out, _err = run(capsysbinary, "--from", file)
    answers = [json.loads(line) for line in out.splitlines()]
    assert [a["id"] for a in answers] == ["a", None, "b", None, "c"]
    assert [("error" in a) for a in answers] == [False, True, True, True, False]
    assert "lora_r" in answers[2]["error"]["where"]
    assert f"{file}:4" in answers[2]["error"]["where"]
    assert code == 2


def test_from_exits_3_when_something_does_not_fit_and_0_when_all_do(tmp_path, capsysbinary):
    file = tmp_path / "cases.jsonl"
    file.write_bytes(orjson.dumps(LLAMA | {"gpu": "RTX4090", "method": "full"}))
    assert run(capsysbinary, "--from", file)[0] == 3
    file.write_bytes(orjson.dumps(LLAMA | {"gpu": "H100"}))
    assert run(capsysbinary, "--from", file)[0] == 0
    assert run(capsysbinary, "--from", tmp_path / "missing.jsonl")[0] == 2


def test_a_recipe_is_planned_with_values_over_it(capsysbinary):
    code, result = document(capsysbinary, "qlora-sft", "--server", "b-RTX4090", "lora_r=32")
    assert code == 0
    assert result["parameters"] == 8_190_735_360
    assert result["trained_parameters"] == 2 * 43_646_976


def test_a_recipe_s_base_adapter_and_evaluation_are_counted_as_the_engine_trains_them(tmp_path):
    from engine import recipe
    from engine.plan import from_recipe

    def request_of(name, *over):
        return from_recipe.values(recipe.resolve(recipe.load(recipe.find(name), list(over)), num_gpus=1), num_gpus=1)

    lora, qlora, full = (request_of(f"{name}-sft") for name in ("lora", "qlora", "full"))
    assert (lora["bf16_master"], full["bf16_master"]) == ("bf16", "fp32")  # a frozen base has no master copy
    assert (qlora["quant"], qlora["lora_dtype"]) == ("nf4-dq", "bf16")
    assert lora["per_device_eval_batch_size"] == 2
    assert "per_device_eval_batch_size" not in request_of("lora-sft", "eval_strategy=no")
    assert request_of("lora-sft", "use_liger_kernel=true")["loss"] == "liger"


def test_a_launcher_plans_a_resolved_recipe_with_the_lengths_of_its_data(tmp_path):
    from engine import recipe
    from engine.plan import from_recipe

    data = tmp_path / "rows.jsonl"
    data.write_text(('{"text": "' + "x" * 400 + '"}\n') * 100)
    loaded = recipe.load(recipe.find("qlora-sft"), [f"dataset_path={data}"])
    resolved = recipe.resolve(loaded, num_gpus=1)
    result = from_recipe.plan_of(resolved, num_gpus=1, gpu="L4", gpu_memory_gb=None)
    assert result.problems == []
    assert result.request.sharding == "none"
    assert result.tokens == pytest.approx(2 * 100 * 104, rel=0.3)  # two epochs of a hundred rows of about 104 tokens
    assert from_recipe.lengths(tmp_path / "missing.jsonl") is None


def test_a_wrong_recipe_is_one_error(capsysbinary, tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text("model_name_or_path: Qwen/Qwen3-8B\nlora_rr: 3\n")
    code, out, _err = run(capsysbinary, "--json", file)
    assert code == 2
    assert "lora_rr" in out


def test_nothing_to_plan_is_a_usage_error(capsysbinary):
    code, _out, err = run(capsysbinary)
    assert code == 2
    assert "ftui plan RECIPE" in err


@pytest.mark.parametrize(
    "argv",
    [
        ("--model", "Llama-3.1-8B", "--method", "qlora", "--gpu", "RTX4090", "--rows", "5000"),
        ("--model", "Llama-3.1-70B", "--method", "full", "--server", "8xH200", "--rows", "5000", "max_length=8192"),
        ("--model", "Llama-3.1-70B", "--method", "full", "--server", "8xH100", "sharding=fsdp2"),
        ("--model", "Qwen/Qwen3-30B-A3B", "--method", "lora", "--gpu", "H200", "loss=full", "batch=2", "x=1"),
        ("--model", "gpt2", "--method", "full", "max_length=512"),
    ],
)
def test_people_s_text_stays_within_80_columns(capsysbinary, argv):
    _code, out, _err = run(capsysbinary, *argv)
    assert "PER GPU" in out
    assert max(len(line) for line in out.splitlines()) <= 80


def test_all_compares_methods_and_servers(capsysbinary):
    code, result = document(capsysbinary, "--all", "--model", "Llama-3.1-8B", "--rows", "1000")
    assert code == 0
    assert {row["method"] for row in result["rows"]} == {"full", "lora", "qlora"}
    assert sum(row["cheapest"] for row in result["rows"]) == 3
    _code, out, _err = run(capsysbinary, "--all", "--model", "Llama-3.1-8B")
    assert "cheapest" in out


def test_without_gpus_a_recipe_is_held_against_host_memory_in_fp32(capsysbinary):
    code, plan = document(capsysbinary, "demo")
    assert code == 0 and plan["per_gpu"]["capacity_gb"] > 0 and plan["time"]["tokens_per_s"] is None
    _code, there = document(capsysbinary, "lora-sft", "--server", "8xH100")
    _code, here = document(capsysbinary, "lora-sft")
    weights = [plan["per_gpu"]["breakdown"]["weights"] for plan in (here, there)]
    assert weights[0] > 1.9 * weights[1], "fp32 on a processor, bf16 on a card"
    _code, table = document(capsysbinary, "lora-sft", "--all")
    needs = {row["server"]: row["needs_gb"] for row in table["rows"] if row["method"] == "lora"}
    assert needs["b-H100"] < 30, "other machines are not this one"
    _code, out, _err = run(capsysbinary, "demo")
    assert "TIME     not known for this machine: a probe or the first run measures it" in out
    assert "GPU" not in out, "there is none to speak of"
