"""Dry steps against real ones: TRL's trainer on real tensors, two real FSDP2 ranks, and the command as a whole.

The real peak of one process is the total of torch's own CPU allocator; that of a rank is counted by live storages
(tests/support/dryrun.py says why). Both are the peak of a whole step.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.heavy

ROOT = Path(__file__).resolve().parents[2]
METHODS = ("full", "lora", "qlora")
WITHIN = 0.01


def specs(config, rows=2, length=128, **more):
    """Full, LoRA and QLoRA, with and without checkpointing, as the CPU runs them."""
    from engine.dryrun.spec import Spec

    for method in METHODS:
        for checkpointing in (False, True):
            yield Spec(
                config, method, rows, length, target="cpu", checkpointing=checkpointing,
                bf16_master="fp32" if method == "full" else "bf16", lora_dtype="bf16" if method == "qlora" else "fp32",
                **more,
            )  # fmt: skip


def dry_peak(spec) -> float:
    from engine.dryrun import step

    return max(sum(parts.values()) for parts in step.measure(spec).values())


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    from tests.support.dryrun import TINY, save_model

    return save_model(TINY, tmp_path_factory.mktemp("dryrun") / "tiny")


def errors_of(chosen, folder, out) -> dict[tuple, float]:
    from tests.support.dryrun import real_peak

    return {
        (spec.method, spec.checkpointing, spec.accumulation): dry_peak(spec) / real_peak(spec, folder, out) - 1
        for spec in chosen
    }


@pytest.mark.timeout(600)
def test_the_tiny_model_takes_what_its_dry_run_says(tiny, tmp_path):
    from tests.support.dryrun import TINY

    # the second micro-batch of two meets the gradients of the first
    errors = errors_of([*specs(TINY), next(specs(TINY, accumulation=2))], tiny, tmp_path)
    assert max(abs(error) for error in errors.values()) < WITHIN, errors


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_125_million_parameters_take_what_their_dry_run_says(tmp_path):
    from tests.support.dryrun import SMALL, save_model

    errors = errors_of(specs(SMALL, rows=1, length=64), save_model(SMALL, tmp_path / "small"), tmp_path)
    print(errors)
    assert max(abs(error) for error in errors.values()) < WITHIN, errors


def errors_of_two_ranks(chosen, folder, out) -> dict[tuple, float]:
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2",
        str(ROOT / "tests/support/dryrun_rank.py"), json.dumps([spec.to_json() for spec in chosen]), str(folder),
        str(out),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    real = json.loads((out / "peaks.json").read_text())
    return {
        (spec.method, spec.checkpointing): dry_peak(spec) / peak - 1 for spec, peak in zip(chosen, real, strict=True)
    }


@pytest.mark.timeout(600)
def test_two_real_fsdp2_ranks_take_what_fake_ranks_say(tiny, tmp_path):
    from tests.support.dryrun import TINY

    chosen = list(specs(TINY, sharding="fsdp2", ranks=2))
    errors = errors_of_two_ranks([chosen[0], *(spec for spec in chosen if spec.checkpointing)], tiny, tmp_path)
    assert max(abs(error) for error in errors.values()) < WITHIN, errors


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_two_real_ranks_of_125_million_parameters(tmp_path):
    from tests.support.dryrun import SMALL, save_model

    folder = save_model(SMALL, tmp_path / "small")
    errors = errors_of_two_ranks(list(specs(SMALL, rows=1, length=64, sharding="fsdp2", ranks=2)), folder, tmp_path)
    print(errors)
    assert max(abs(error) for error in errors.values()) < WITHIN, errors


@pytest.mark.timeout(300)
def test_the_canary_sees_fake_equal_to_real():
    from engine.dryrun import canary

    assert dict(canary.errors()) == {"full": 0.0, "lora": 0.0, "qlora": 0.0}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"method": "lora", "bf16_master": "bf16", "checkpointing": False, "loss": "full"},
        {"method": "lora", "bf16_master": "bf16", "sharding": "fsdp2", "ranks": 4},
        {"accumulation": 2, "sharding": "fsdp2", "ranks": 4},
    ],
)
def test_two_depths_give_the_whole_model(more):
    import torch

    from engine.dryrun import depth, step
    from engine.dryrun.spec import Spec
    from tests.support.dryrun import TINY

    spec = Spec(TINY | {"num_hidden_layers": 16}, rows=2, length=256, **({"method": "full"} | more))
    measured = [step.measure(spec.at_depth(layers)) for layers in (4, 6)]
    guessed = depth.named(depth.extrapolate(measured[0], measured[1], (4, 6), 16))
    whole = depth.named(step.measure(spec))
    for phase, parts in whole.items():
        assert sum(guessed[phase].values()) == pytest.approx(sum(parts.values()), rel=1e-4), phase
    assert not torch.distributed.is_initialized()  # the fake ranks are gone


def plan(*words, env=None):
    """`ftui plan` in a process of its own."""
    command = [sys.executable, "-m", "tui", "plan", *words]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, cwd=ROOT, env={**os.environ, **(env or {})}
    )


@pytest.fixture
def request_words(tmp_path) -> list[str]:
    from tests.support.dryrun import TINY

    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(TINY | {"num_hidden_layers": 20}))
    return ["--model", str(folder), "--method", "qlora", "--gpu", "H100", "--max-length", "512", "--dry-run-step"]


@pytest.mark.timeout(600)
def test_the_command_shows_both_tiers_and_remembers(request_words, house):
    first = plan(*request_words)
    assert first.returncode == 0, first.stderr
    assert "closed form" in first.stdout and "dry run: fits" in first.stdout
    assert "20 layers from 4 and 6" in first.stdout
    tiers = first.stdout[first.stdout.index("GB ALLOCATED") :]
    assert all(len(line) <= 80 for line in tiers.splitlines())
    assert "dry run: loading" in first.stderr
    again = plan(*request_words, "--json")
    document = json.loads(again.stdout)["dry_run"]
    assert document["cached"] and document["depths"] == [4, 6] and document["layers"] == 20
    assert abs(document["difference"]) < 0.05
    assert sum(document["breakdown"].values()) == pytest.approx(document["allocated_gb"], abs=0.004)
    assert "dry run: loading" not in again.stderr
    # near the limit a guess from two depths is not good enough
    limit = str(document["needs_gb"])
    near = plan(*[w for w in request_words if w not in ("--gpu", "H100")], "--gpu-memory-gb", limit, "--json")
    assert json.loads(near.stdout)["dry_run"]["depths"] == [20]


@pytest.mark.timeout(300)
def test_what_cannot_be_run_dry_says_so_beside_the_closed_form(request_words):
    done = plan(*request_words, "--sharding", "zero3", "--num-gpus", "2")
    assert done.returncode == 2
    assert "needs" in done.stdout and "closed form only" in done.stderr
    done = plan(*request_words, "--sharding", "zero3", "--num-gpus", "2", "--json")
    document = json.loads(done.stdout)
    assert document["per_gpu"]["allocated_gb"] > 0 and document["dry_run"]["error"]["kind"] == "no_dry_run"
    assert plan(*request_words, "--all").returncode == 2


def broken_python(folder: Path, body: str) -> dict[str, str]:
    """An interpreter that answers about its packages and does `body` when the dry run is started."""
    script = folder / "python"
    script.write_text(f'#!/bin/sh\ncase "$*" in *engine.dryrun*) {body};; esac\nexec {sys.executable} "$@"\n')
    script.chmod(0o755)
    return {"FTUI_PYTHON": str(script)}


@pytest.mark.timeout(300)
def test_a_native_abort_is_one_clear_error_and_the_closed_form_stands(request_words, tmp_path):
    env = broken_python(tmp_path, "cat > /dev/null; echo 'c10 assertion' >&2; kill -ABRT $$")
    done = plan(*request_words, env=env)
    assert done.returncode == 1
    assert f"ended by signal {signal.SIGABRT.value}" in done.stderr and "Traceback" not in done.stderr
    assert "needs" in done.stdout
    log = next(line for line in done.stderr.splitlines() if line.startswith("  at")).split()[-1]
    assert "c10 assertion" in Path(log).read_text()
    env = broken_python(tmp_path, "echo 'RuntimeError: no such kernel' >&2; exit 7")
    done = plan(*request_words, "--json", env=env)
    error = json.loads(done.stdout)["dry_run"]["error"]
    assert done.returncode == 1 and "exit code 7: RuntimeError: no such kernel" in error["message"]
    assert not list((Path(log).parent).glob("*.json"))


@pytest.mark.timeout(300)
def test_versions_that_differ_are_named(request_words, tmp_path):
    answer = json.dumps({"event": "error", "kind": "versions", "text": "full: 4.0 %"})
    env = broken_python(tmp_path, f"cat > /dev/null; echo '{answer}'; exit 0")
    done = plan(*request_words, env=env)
    assert done.returncode == 1 and "full: 4.0 %" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_70b_over_8_fake_ranks(tmp_path):
    """All 80 layers, as near the limit: the whole command within 90 s on two cores."""
    import time

    words = [
        "--model", "meta-llama/Llama-3.1-70B", "--method", "full", "--num-gpus", "8", "--sharding", "fsdp2",
        "--max-length", "8192", "--gpu-memory-gb", "155", "--dry-run-step", "--json",
    ]  # fmt: skip
    started = time.monotonic()
    done = plan(*words, env={"OMP_NUM_THREADS": "2"})
    seconds = time.monotonic() - started
    document = json.loads(done.stdout)["dry_run"]
    print(f"{seconds:.1f} s, {document}")
    assert document["depths"] == [80]
    assert seconds <= 90
    assert sum(document["breakdown"][part] for part in ("weights", "gradients", "optimizer")) == pytest.approx(
        140.2, abs=0.5
    )
