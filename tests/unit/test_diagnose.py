"""The post-mortem: messages as the libraries, the driver and the kernel really write them, and what comes of each."""

# ruff: noqa: E501 - messages as they are
from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from engine.errors import UsageError
from engine.files import write_json
from engine.journal import JournalWriter
from engine.run import diagnose, evidence, remedies, resuming
from engine.run.causes import CAUSES, UNKNOWN
from engine.run.statefile import fresh
from engine.workspace import RunFolder
from tests.support.checkpoints import write_checkpoint
from tui import cli

CUDA_OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.32 GiB. GPU 0 has a total capacity of 79.11 GiB "
    "of which 1.05 GiB is free. Including non-PyTorch memory, this process has 78.05 GiB memory in use. Of the "
    "allocated memory 74.62 GiB is allocated by PyTorch, and 2.83 GiB is reserved by PyTorch but unallocated."
)
NCCL_TIMEOUT = (
    "[rank1]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, NumelIn=466119168, NumelOut=466119168, Timeout(ms)=600000) ran for 600060 "
    "milliseconds before timing out."
)
RECORDED = [
    ("out_of_memory", 0, CUDA_OOM),
    ("out_of_memory", 1, "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 1.00 GiB."),
    ("out_of_memory", 0, "RuntimeError: CUDA error: out of memory"),
    ("collective_timeout", 1, NCCL_TIMEOUT),
    ("collective_timeout", 0, "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined."),
    ("driver", 0, "RuntimeError: CUDA error: uncorrectable ECC error encountered"),
    ("driver", 0, "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"),
    ("driver", 0, "RuntimeError: CUDA error: unspecified launch failure"),
    ("driver", 3, "NVRM: Xid (PCI:0000:65:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."),
    ("disk_full", 0, 'safetensors_rust.SafetensorError: Error while serializing: I/O error: No space left on device (os error 28)'),
    ("disk_full", 0, "RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0"),
    ("disk_full", 0, "OSError: [Errno 122] Disk quota exceeded: '/data/ft/runs/a/checkpoints/.staging-40/optimizer.pt'"),
    ("versions", 0, "RuntimeError: The NVIDIA driver on your system is too old; CUDA driver version is insufficient for CUDA runtime version"),
    ("versions", 0, "RuntimeError: CUDA error: no kernel image is available for execution on the device"),
    ("versions", 0, "ImportError: cannot import name 'SFTTrainer' from 'trl' (/usr/lib/python3/trl/__init__.py)"),
    ("versions", 0, "ImportError: libcudart.so: undefined symbol: cudaGetDriverEntryPointByVersion, version libcudart.so.12"),
    ("missing_package", 0, "ModuleNotFoundError: No module named 'trl'"),
    ("hub", 0, "OSError: You are trying to access a gated repo. huggingface_hub.errors.GatedRepoError: 403 Client Error."),
    ("hub", 0, "huggingface_hub.errors.RepositoryNotFoundError: 401 Client Error. Repository Not Found for url"),
    ("template", 0, "jinja2.exceptions.TemplateError: Conversation roles must alternate user/assistant/user/assistant/..."),
    ("data", 0, "pyarrow.lib.ArrowInvalid: JSON parse error: Missing a closing quotation mark in string. in row 7"),
    ("peer_lost", 1, "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, remote process exited or there was a network error, NCCL version 2.27.3"),
    ("signal", None, " traceback : Signal 15 (SIGTERM) received by PID 4242"),
]  # fmt: skip


def made(house: Path, *, error: dict[str, Any] | None, state: str = "failed", **recipe: Any) -> RunFolder:
    run = RunFolder(house / "ft" / "runs" / "a")
    for folder in (run.logs, run.checkpoints):
        folder.mkdir(parents=True)
    write_json(run.state, fresh("a", state=state, step=40, error=error))
    values = {"dataset_path": "/data/train.jsonl", "learning_rate": 2e-4, "per_device_train_batch_size": 4, **recipe}
    origin = dict.fromkeys(values, "recipe")
    document = {"format": 1, "run": "a", "recipe": values, "origin": origin, "overrides": ["max_steps=50"]}
    write_json(run.resolved, {**document, "source": "/gone.yaml"})
    run.recipe.write_text("method: lora\n")
    return run


def sealed(run: RunFolder, step: int = 40) -> None:
    from engine.checkpoint.manifest import seal

    staging = write_checkpoint(run.checkpoints / f".staging-{step}", step)
    seal(staging, run.checkpoints / f"checkpoint-{step}", {"step": step, "attempt": 1})


CRASH = {"kind": "crash", "message": "training ended with exit code 1 and gave no reason", "where": None, "fix": None}


@pytest.mark.parametrize(("kind", "rank", "message"), RECORDED, ids=[f"{k}-{i}" for i, (k, *_r) in enumerate(RECORDED)])
def test_a_message_in_a_log_names_the_cause_with_its_line(
    house: Path, kind: str, rank: int | None, message: str
) -> None:
    run = made(house, error=CRASH)
    name = "launcher.log" if rank is None else f"rank-{rank}.log"
    (run.logs / name).write_text("loading\n" * 99 + message + "\nand more\n")
    found = diagnose.diagnose(run)
    assert found is not None
    assert (found.kind, found.rank) == (kind, rank)
    assert (found.evidence[0].file, found.evidence[0].line) == (f"logs/{name}", 100)
    assert found.evidence[0].text[:40] in message.strip()
    assert found.fixes and all(fix.text for fix in found.fixes)


def test_the_cause_comes_before_what_follows_from_it(house: Path) -> None:
    run = made(house, error={**CRASH, "kind": "peer_lost"})
    (run.logs / "rank-0.log").write_text("RuntimeError: Connection closed by peer [127.0.0.1]:4321\n")
    (run.logs / "rank-1.log").write_text(CUDA_OOM + "\n")
    found = diagnose.diagnose(run)
    assert found is not None and (found.kind, found.rank) == ("out_of_memory", 1)


def test_the_line_numbers_of_a_long_log_are_those_of_the_file(house: Path) -> None:
    run = made(house, error=CRASH)
    with open(run.logs / "rank-0.log", "w") as log:
        for number in range(1, 60_001):
            log.write(f"line {number} of many\n" if number != 59_000 else NCCL_TIMEOUT + "\n")
    found = diagnose.diagnose(run)
    assert found is not None and found.evidence[0].line == 59_000


def test_what_the_supervisor_saw_of_a_gpu_is_the_cause(house: Path) -> None:
    run = made(house, error=CRASH)
    events = JournalWriter(run.events)
    events.append("gpu", index=1, what="xid", xid=13)
    events.append("launched", attempt=2)
    events.append("gpu", index=3, what="xid", xid=79)
    events.append("gpu", index=3, what="lost")
    (run.logs / "rank-0.log").write_text("RuntimeError: Connection closed by peer\n")
    found = diagnose.diagnose(run)
    assert found is not None and found.kind == "driver"
    assert [line.text for line in found.evidence] == ["GPU 3: xid 79", "GPU 3: lost"]
    assert found.evidence[0].line == 3


def test_the_kernels_words_are_those_about_our_processes() -> None:
    text = (
        "[1.0] Out of memory: Killed process 4242 (python) total-vm:124058212kB, anon-rss:82049124kB, file-rss:0kB\n"
        "[2.0] Memory cgroup out of memory: Killed process 99 (other) total-vm:1kB\n"
        "[3.0] NVRM: Xid (PCI:0000:65:00): 31, pid=4243, name=python, Ch 00000008, MMU Fault\n"
    )
    assert [line.text[:5] for line in evidence.kernel_lines(text, [4242, 4243])] == ["[1.0]", "[3.0]"]


def test_a_rank_killed_while_the_memory_was_full_was_killed_for_it(house: Path) -> None:
    run = made(house, error={**CRASH, "kind": "crash"})
    (run.logs / "launcher.log").write_text("  exitcode  : -9 (pid: 999999)\n")
    assert (found := diagnose.diagnose(run)) is not None and found.kind == "signal"
    sample = {"host": {"memory_total": 100e9, "memory_available": 1e9}}
    run.hardware.write_bytes(orjson.dumps({"event": "sample", **sample}) + b"\n")
    found = diagnose.diagnose(run)
    assert found is not None and found.kind == "oom_killer"
    assert "1.0 GB of 100.0 GB were left" in found.evidence[1].text


def test_an_error_that_says_it_all_needs_no_log(house: Path) -> None:
    error = {
        "kind": "bad_row",
        "message": "the row has no assistant turn",
        "where": "/data/train.jsonl:17",
        "fix": "mend it",
    }
    found = diagnose.diagnose(made(house, error=error))
    assert found is not None and found.kind == "data"
    assert (found.evidence[0].file, found.evidence[0].line) == ("/data/train.jsonl", 17)
    assert found.fixes[0].text == "mend it"
    assert "ftui data check /data/train.jsonl" in [fix.command for fix in found.fixes]


def test_nothing_known_is_said_to_be_not_known_with_the_last_words(house: Path) -> None:
    run = made(house, error=CRASH)
    (run.logs / "rank-0.log").write_text("all is well\nZeroDivisionError: division by zero\n\n")
    found = diagnose.diagnose(run)
    assert found is not None and found.kind == "unknown"
    assert found.evidence[0].to_json() == {
        "file": "logs/rank-0.log",
        "line": 2,
        "text": "ZeroDivisionError: division by zero",
    }


@pytest.mark.parametrize("state", ["done", "running", "queued"])
def test_a_run_that_goes_well_has_no_post_mortem(house: Path, state: str) -> None:
    assert diagnose.diagnose(made(house, error=None, state=state)) is None or state == "running"


def test_a_lost_run(house: Path) -> None:
    run = made(house, error=None, state="running")
    found = diagnose.diagnose(run)
    assert found is not None and (found.kind, found.fixes[0].action) == ("lost", "run")
    sealed(run)
    found = diagnose.diagnose(run)
    assert found is not None and found.fixes[0].command == "ftui resume a"


# Out of memory: what the planner says


def with_plan(run: RunFolder) -> None:
    shape = {
        "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "head_dim": 128,
    }  # fmt: skip
    request = {
        "config": shape, "method": "lora", "lora_r": 16, "max_length": 4096, "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 1, "gradient_checkpointing": False, "num_gpus": 1, "gpu": "H100",
    }  # fmt: skip
    write_json(run.plan, {"format": 1, "request": request, "result": {}})


OOM = {"kind": "out_of_memory", "message": "out of memory at step 1", "rank": 0, "phase": "backward", "step": 1}


def test_three_fixes_ranked_by_the_planner_that_take_less_than_before(house: Path) -> None:
    memory = {
        "allocated": 74_000_000_000,
        "reserved_unused": 2_800_000_000,
        "free": 1_000_000_000,
        "total": 79_000_000_000,
    }
    run = made(house, error={**OOM, "memory": memory})
    with_plan(run)
    found = diagnose.diagnose(run)
    assert found is not None and len(found.fixes) == 3
    sizes = [float(fix.text.rsplit("about ", 1)[1].split(" GB")[0]) for fix in found.fixes]
    tight = [fix.text.endswith("that is tight") for fix in found.fixes]
    assert tight == [size > 76 for size in sizes] == sorted(tight), "what surely fits comes first"
    assert all(fix.action == "run" and "instead of" in fix.text for fix in found.fixes)
    assert all("max_steps=50" in fix.changes for fix in found.fixes), "the run's own overrides stay"
    assert diagnose.where(found) == "rank 0, in backward, step 1"
    assert "74.0 GB in tensors" in diagnose.memory_words(found.memory or {})
    sealed(run)
    found = diagnose.diagnose(run)
    assert found is not None and found.fixes[0].action == "resume"
    assert {change.partition("=")[0] for change in found.fixes[0].changes} <= resuming.FREE


def test_without_a_plan_the_usual_fixes(house: Path) -> None:
    run = made(house, error=OOM, gradient_checkpointing=False, max_length=2048, method="lora")
    sealed(run)
    found = diagnose.diagnose(run)
    assert found is not None
    assert [fix.command for fix in found.fixes] == [
        "ftui resume a per_device_train_batch_size=2",
        "ftui resume a gradient_checkpointing=true",
        f"ftui run {run.recipe} max_steps=50 max_length=1024",
    ]


def test_applying_a_fix_resumes_or_starts_anew(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = made(house, error=OOM, max_length=2048)
    sealed(run)
    seen: list[Any] = []
    monkeypatch.setattr(resuming, "resume", lambda run, changes: seen.append(("resume", changes)))
    monkeypatch.setattr("engine.run.launch.start", lambda home, recipe, changes: seen.append(("run", recipe, changes)))
    found = diagnose.diagnose(run)
    diagnose.apply(run, found, 1)
    diagnose.apply(run, found, 2)
    assert seen == [
        ("resume", ["per_device_train_batch_size=2"]), ("run", str(run.recipe), ["max_steps=50", "max_length=1024"]),
    ]  # fmt: skip
    for number in (0, 9):
        with pytest.raises(UsageError, match="not one that can be applied"):
            diagnose.apply(run, found, number)


def test_a_fix_of_the_original_override_replaces_it(house: Path) -> None:
    fix = remedies.with_changes(made(house, error=OOM), "x", ["max_steps=9"], can_resume=False)
    assert fix.changes == ["max_steps=9"]


# The command and the documentation


def test_explain_and_status(house: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = made(house, error=OOM, max_length=2048)
    (run.logs / "rank-0.log").write_text(CUDA_OOM + "\n")
    assert cli.main(["explain", "a"]) == 0
    shown = capsys.readouterr().out
    assert "a  out of memory" in shown and "logs/rank-0.log:1" in shown and "ftui run" in shown
    assert cli.main(["explain", "a", "--json"]) == 0
    document = orjson.loads(capsys.readouterr().out)["diagnosis"]
    assert cli.main(["status", "a", "--json"]) == 0
    assert orjson.loads(capsys.readouterr().out)["diagnosis"] == document
    assert (document["kind"], document["rank"], document["phase"]) == ("out_of_memory", 0, "backward")
    assert set(document["fixes"][0]) == {"text", "command", "action", "changes"}


def test_every_cause_is_documented_with_its_commands() -> None:
    text = (Path(__file__).parents[2] / "docs" / "troubleshooting.md").read_text()
    for cause in (*CAUSES, UNKNOWN):
        row = next((line for line in text.splitlines() if line.startswith(f"| `{cause.kind}`: {cause.title} |")), "")
        assert cause.meaning in row, cause.kind
        for _text, command in cause.fixes:
            assert command.split("{")[0].replace("|", "\\|") in row, (cause.kind, command)
        assert cause.patterns() is not None


def test_a_post_mortem_loads_nothing_heavy() -> None:
    code = "import sys, engine.run.diagnose; print(int(any(m in sys.modules for m in ('torch', 'pydantic', 'yaml'))))"
    assert subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True).stdout.strip() == "0"
