"""`ftui doctor` as a user runs it, on this machine and on machines with (fake) GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_nvml import Scenario, fake_nvml, fake_nvml_library

__all__ = ["fake_nvml", "fake_nvml_library"]

CHECKS = {
    "python", "packages", "train.python", "train.packages", "driver", "memory", "memory.limit", "memory.shm",
    "open_files", "disk.workspace", "disk.models", "tmux", "terminal", "locale", "terminal.size", "rclone", "hub",
    "clock", "time_zone",
}  # fmt: skip


def doctor(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tui", "doctor", *arguments],
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )


def checks(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    document = json.loads(done.stdout)
    assert document["ok"] == (done.returncode == 0) == all(c["state"] != "fail" for c in document["checks"])
    for check in document["checks"]:
        assert check.keys() == {"id", "group", "state", "value", "detail", "fix"}
        assert check["state"] in ("ok", "warn", "fail") and check["value"]
        assert check["state"] == "ok" or check["fix"], f"{check['id']} is not ok and has no fix"
    return {check["id"]: check for check in document["checks"]}


@pytest.mark.heavy
def test_this_machine(fake_nvml: Scenario) -> None:
    """Without GPUs: ready all the same, and torch was asked in its own process."""
    fake_nvml.driver(count=0)
    done = doctor("--json", env=fake_nvml.env)
    found = checks(done)
    assert found.keys() >= CHECKS | {"torch"}
    assert found["torch"]["value"].startswith("2.")
    assert found["train.packages"]["state"] in ("ok", "warn")
    assert found["rclone"]["state"] == "ok" and found["rclone"]["value"].startswith("v1.")
    assert "offline" in found["hub"]["value"]


@pytest.mark.heavy
def test_gpus_with_a_torch_that_cannot_use_them(fake_nvml: Scenario) -> None:
    fake_nvml.split(1, ["3g.40gb", "4g.40gb"])
    fake_nvml.set(2, ecc_errors=3)
    fake_nvml.set(4, processes={os.getpid(): 60 << 30}, memory_used=60 << 30)
    done = doctor("--json", env=fake_nvml.env)
    found = checks(done)
    assert found["driver"] == {
        "id": "driver",
        "group": "gpu",
        "state": "ok",
        "value": "580.95.05",
        "detail": "up to CUDA 13.0",
        "fix": "",
    }
    assert found["gpu.0"]["value"] == "NVIDIA H100 80GB HBM3, 85.5 GB"
    assert "MIG" in found["gpu.1"]["detail"] and "MIG 3g.40gb" in found["gpu.1.0"]["value"]
    assert found["gpu.2"]["state"] == "warn" and "3 uncorrected" in found["gpu.2"]["detail"]
    assert "1 process uses it" in found["gpu.4"]["detail"]
    if "CPU build" in found["torch"]["detail"]:
        assert done.returncode == 1
        assert found["torch.gpu"]["state"] == "fail" and "install" in found["torch.gpu"]["fix"]


def test_a_lost_gpu_and_a_broken_driver_fail(fake_nvml: Scenario) -> None:
    fake_nvml.set(5, lost=1)
    done = doctor("--json", "--quick", env=fake_nvml.env)
    assert done.returncode == 1
    assert checks(done)["gpu.5"]["state"] == "fail"
    fake_nvml.driver(init=18)
    done = doctor("--json", "--quick", env=fake_nvml.env)
    assert done.returncode == 1
    driver = checks(done)["driver"]
    assert driver["state"] == "fail" and "different versions" in driver["value"] and "reboot" in driver["fix"]


def test_for_people(fake_nvml: Scenario) -> None:
    fake_nvml.driver(count=0)
    done = doctor("--quick", env=fake_nvml.env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "fix: " in done.stdout and "Host memory" in done.stdout and "ready" in done.stdout
    assert "Traceback" not in done.stderr and "torch" not in done.stderr
    plain = doctor("--quick", env={**fake_nvml.env, "PYTHONIOENCODING": "ascii:replace"})
    assert plain.returncode == 0 and plain.stdout.isascii() and " + Python" in plain.stdout


def test_a_training_python_without_torch(fake_nvml: Scenario, tmp_path: Path) -> None:
    fake_nvml.driver(count=0)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True, timeout=60)
    done = doctor("--json", env={**fake_nvml.env, "FTUI_PYTHON": str(tmp_path / "env" / "bin" / "python")})
    assert done.returncode == 1
    missing = checks(done)["train.packages"]
    assert missing["state"] == "fail" and "torch" in missing["value"]
    done = doctor("--json", "--quick", env={**fake_nvml.env, "FTUI_PYTHON": str(tmp_path / "none")})
    assert checks(done)["train.python"]["state"] == "fail"


def test_a_token_is_never_printed(fake_nvml: Scenario) -> None:
    done = doctor("--json", "--quick", env={**fake_nvml.env, "HF_TOKEN": "hf_very_secret"})
    assert "hf_very_secret" not in done.stdout + done.stderr
    assert "token is there" in checks(done)["hub"]["detail"]
