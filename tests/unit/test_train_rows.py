"""Reading training rows: forms, and errors that name file and line. And what a run refuses before torch is loaded."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.errors import FtuiError, UsageError
from engine.files import write_json
from engine.hardware.device import Gpu
from engine.run import gpus
from engine.train import builtin, job, launcher, rows
from engine.train.events import answered
from engine.train.rank import Rank
from engine.workspace import RunFolder

TALK = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]


def written(folder: Path, *values: Any, name: str = "rows.jsonl") -> Path:
    path = folder / name
    path.write_text("".join((v if isinstance(v, str) else json.dumps(v)) + "\n" for v in values), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("value", "columns"),
    [
        ({"messages": TALK, "id": 7}, {"messages": TALK}),
        ({"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]}, {"messages": TALK}),
        ({"prompt": "Hi", "completion": "Hello"}, {"prompt": "Hi", "completion": "Hello"}),
        ({"prompt": TALK[:1], "completion": TALK[1:]}, {"prompt": TALK[:1], "completion": TALK[1:]}),
        ({"text": "Hi there"}, {"text": "Hi there"}),
    ],
)
def test_forms(tmp_path: Path, value: dict[str, Any], columns: dict[str, Any]) -> None:
    (row,) = rows.read([written(tmp_path, value)])
    assert row.values == columns and row.line == 1


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"messages": [', "not strict JSON"),
        ('{"messages": NaN}', "NaN is not JSON"),
        ('["text"]', "JSON object"),
        ('{"question": "a", "answer": "b"}', "prompt=question --column completion=answer"),
        ('{"messages": []}', "is empty"),
        ('{"messages": [{"role": "user"}]}', "no content: user"),
        ('{"prompt": "a", "chosen": "b", "rejected": "c"}', "task: sft"),
        ('{"messages": [{"role": "user", "content": "Hi"}]}', "nothing to learn"),
        ('{"text": "other form"}', "rows before"),
    ],
)
def test_a_broken_row_is_named_with_file_and_line(tmp_path: Path, line: str, says: str) -> None:
    path = written(tmp_path, {"messages": TALK}, "", line)
    with pytest.raises(UsageError, match=says) as caught:
        list(rows.read([path]))
    assert caught.value.where == f"{path}:3"


def test_forced_rows_that_cannot_be_trained_on_are_left_out_and_counted(tmp_path: Path) -> None:
    bad = ['{"messages": [', '"text"', {"question": "a"}, {"text": "other form"}, {"messages": [TALK[0]]}]
    path = written(tmp_path, {"messages": TALK}, *bad, {"messages": TALK})
    with open(path, "ab") as file:
        file.write(b'{"messages": "\xff"}\n')
    left_out = rows.LeftOut()
    assert [row.line for row in rows.read([path], left_out=left_out)] == [1, 7]
    assert left_out.count == 6
    assert left_out.first[0].startswith(f"{path}:2: ") and len(left_out.first) == 6


def test_every_form_that_the_check_of_data_takes_is_trained(tmp_path: Path) -> None:
    alpaca = written(tmp_path, {"instruction": "Hi", "input": "", "output": "Hello"}, name="a.jsonl")
    table = tmp_path / "b.csv"
    table.write_text("instruction,output\nHi,Hello\n")
    for path in (alpaca, table):
        (row,) = rows.read([path])
        assert row.values == {"messages": TALK}


def test_a_file_that_is_cut_off_is_an_error_and_not_a_short_file(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"text": "two words"}\n' * 50_000)[:-200])
    with pytest.raises(UsageError, match="damaged"):
        list(rows.read([path]))


def test_files_of_all_kinds(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    written(folder, {"text": "one"}, name="a.jsonl")
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(b'{"text": "two"}\n'))
    (folder / "c.json").write_text('\ufeff[\n{"text": "three"},\n{"text": "four"}]', encoding="utf-8")
    (folder / "notes.md").write_text("no data")
    texts = [row.values["text"] for row in rows.read(rows.resolve(str(folder)))]
    assert texts == ["one", "two", "three", "four"]
    assert [path.name for path in rows.resolve(f"{folder}/*.jsonl*")] == ["a.jsonl", "b.jsonl.gz"]
    with pytest.raises(UsageError, match="no training data"):
        rows.resolve(str(folder / "d*.jsonl"))


def test_built_in_conversations_follow_their_rule_and_their_maker() -> None:
    from recipes.data import make_support

    made = make_support.make()
    path = builtin.dataset_path("builtin:support")
    assert made == {name: (path.parent / name).read_text(encoding="utf-8") for name in made}
    read = list(rows.read([path]))
    assert len(read) > 400
    for row in read:
        for message in row.values["messages"][1::2]:
            assert message["content"].rsplit(" ", 1)[1] in make_support.CODES.values()
    with pytest.raises(UsageError, match="no built-in data set"):
        builtin.dataset_path("builtin:other")


def the_job(folder: Path, world_size: int = 1, **recipe: Any) -> job.Job:
    run = RunFolder(folder / "runs" / "one")
    run.path.mkdir(parents=True, exist_ok=True)
    write_json(run.resolved, {"format": 1, "recipe": {"dataset_path": "builtin:support", **recipe}})
    return job.load(Rank(run, 0, 0, world_size, 1, None))


@pytest.mark.parametrize(
    ("recipe", "where"),
    [
        ({"backend": "unsloth"}, "backend"),
        ({"num_machines": 2}, "num_machines"),
        ({"deepspeed": "zero3.json"}, "deepspeed"),
        ({"sharding": "none"}, "sharding"),
        ({"sharding": "pipeline"}, "sharding"),
    ],
)
def test_what_cannot_be_trained_is_refused_by_name(tmp_path: Path, recipe: dict[str, Any], where: str) -> None:
    with pytest.raises(UsageError) as caught:
        the_job(tmp_path, world_size=2, **recipe)
    assert caught.value.where == where and caught.value.fix


def test_an_occupied_output_folder_is_never_overwritten(tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.mkdir()
    assert the_job(tmp_path, output_dir=str(output)).recipe["output_dir"]
    (output / "model.safetensors").write_bytes(b"precious")
    with pytest.raises(FtuiError, match="not empty"):
        the_job(tmp_path, output_dir=str(output))


def test_the_launchers_environment(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "one")
    mine = tmp_path / "mine"
    (mine / "engine").mkdir(parents=True)
    base = {
        "PATH": "/bin", "RANK": "3", "WORLD_SIZE": "8", "ACCELERATE_USE_FSDP": "true",
        "PYTHONPATH": f"{mine}:/usr/lib/extra",
    }  # fmt: skip
    argv, env = launcher.command(run, python="py", nproc=2, attempt=3, gpus=[0, "GPU-1"], base=base)
    assert argv[:4] == ["py", "-m", "engine.train.tokenize", str(run.path)]
    assert argv[5:8] == ["py", "-m", "torch.distributed.run"] and argv[-3:] == ["-m", "engine.train", str(run.path)]
    assert argv[argv.index("--nproc-per-node") + 1] == "2"
    assert env == {
        "PATH": "/bin", "PYTHONPATH": "/usr/lib/extra", "PYTHONSAFEPATH": "1", "HF_HUB_DISABLE_TELEMETRY": "1",
        "TOKENIZERS_PARALLELISM": "false", "OMP_WAIT_POLICY": "PASSIVE",
        "FTUI_RUN": str(run.path), "FTUI_ATTEMPT": "3", "FTUI_RESUME_FROM": "",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "0,GPU-1",
    }  # fmt: skip


def test_amd_cards_are_chosen_by_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cards = [Gpu(index, f"54ff-{index}", "AMD Instinct MI300X", vendor="amd", capability="gfx942") for index in (0, 1)]
    monkeypatch.setattr("engine.hardware.gpus.Probe.list", lambda _self: cards)
    _argv, env = launcher.command(RunFolder(tmp_path), python="py", nproc=1, gpus=["54ff-1"], base={})
    assert env["HIP_VISIBLE_DEVICES"] == env["CUDA_VISIBLE_DEVICES"] == "1"
    assert gpus._bf16(cards)
    gpus.refuse_fp8(cards)
    with pytest.raises(FtuiError, match="computes no FP8"):
        gpus.refuse_fp8([Gpu(0, "GPU-0", "NVIDIA A100", capability="8.0")])


def test_flash_attention_is_refused_on_the_cpu_before_anything_is_loaded() -> None:
    gpus.refuse_flash("flash_attention_2", on_gpus=True)
    gpus.refuse_flash("sdpa", on_gpus=False)
    gpus.refuse_flash(None, on_gpus=False)
    with pytest.raises(FtuiError, match="flash_attention_2 needs a GPU") as caught:
        gpus.refuse_flash("flash_attention_2", on_gpus=False)
    assert caught.value.fix == "use attn_implementation: sdpa"


def test_the_ranks_get_the_time_that_a_save_takes(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert launcher.shutdown_timeout(run) == launcher.SHORTEST_SHUTDOWN_S
    run.journal.write_text(
        '{"event":"eval","eval_runtime":100.0}\n{"event":"save","seconds":40.0}\n{"event":"log","step_time_s":10.0}\n'
    )
    assert launcher.shutdown_timeout(run) >= 40 + 100 + 10


def test_an_answered_request_stays_answered(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    assert answered(path) == 0
    path.write_text('{"event":"request","id":4,"do":"save"}\n{"event":"log","step":1}\n{"event":"request","id":2}\n')
    assert answered(path) == 4


def test_what_the_supervisor_imports_loads_no_torch() -> None:
    code = "import sys, engine.train.launcher, engine.train.rank, engine.train.job, engine.train.rows;"
    code += "print(sorted({'torch', 'transformers', 'trl', 'peft', 'datasets'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_each_task_takes_rows_of_its_own_form(tmp_path: Path) -> None:
    pair = {"prompt": "Why?", "chosen": "Because.", "rejected": "No."}
    (row,) = rows.read([written(tmp_path, pair)], task="dpo")
    assert row.values == pair
    turns = [{"role": "user", "content": "Why?"}]
    good, bad = ([*turns, {"role": "assistant", "content": text}] for text in ("Because.", "No."))
    (row,) = rows.read([written(tmp_path, {"chosen": good, "rejected": bad})], task="dpo")
    assert row.values == {"prompt": turns, "chosen": good[1:], "rejected": bad[1:]}
    for task, value in (("dpo", {"messages": good}), ("pretrain", {"messages": good}), ("sft", pair)):
        with pytest.raises(UsageError) as error:
            list(rows.read([written(tmp_path, value)], task=task))
        assert f"task: {task}" in error.value.what


def test_an_attempt_that_ends_before_it_trains_stands_where_it_was_resumed(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    steps = [
        Rank(run, 0, 0, 1, 2, path).begins_at for path in (None, tmp_path / "checkpoint-11", tmp_path / "elsewhere")
    ]
    assert steps == [0, 11, 0]
