"""The doctor's judgement: torch's build against driver and cards, programs that hang, pins."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from engine.hardware import disk, host
from engine.hardware.device import Gpu
from engine.hardware.doctor import machine, software, terminal
from engine.hardware.gpus import Driver
from engine.workspace import Workspace

H100 = Gpu(0, "GPU-0", "NVIDIA H100 80GB HBM3", capability="9.0")
MI300X = Gpu(0, "uuid-0", "AMD Instinct MI300X", vendor="amd", capability="gfx942")
CUDA = {
    "version": "2.13.0+cu130", "cuda": "13.0", "hip": None, "available": True, "count": 1,
    "arch": ["sm_75", "sm_80", "sm_90", "sm_100", "sm_120"], "nccl": "2.28.9",
}  # fmt: skip
ROCM = {**CUDA, "cuda": None, "hip": "7.0", "arch": ["gfx90a", "gfx942"]}
CPU = {**CUDA, "cuda": None, "available": False, "count": 0, "arch": []}


@pytest.mark.parametrize(
    ("torch", "driver", "gpus", "state", "words"),
    [
        (CUDA, Driver("580", "13.0"), [H100], "ok", "1 usable"),
        (CUDA, Driver("570", "12.8"), [H100], "fail", "too old"),
        ({**CUDA, "cuda": "12.8"}, Driver("535", "12.2"), [H100], "ok", "usable"),  # minor version compatibility
        (CPU, Driver("580", "13.0"), [H100], "fail", "cannot use"),
        (CPU, Driver(), [], "ok", "no GPU"),
        (ROCM, Driver("580", "13.0"), [H100], "fail", "another maker"),
        (ROCM, Driver(), [MI300X], "ok", "usable"),
        ({**ROCM, "arch": ["gfx90a"]}, Driver(), [MI300X], "fail", "no code for AMD Instinct MI300X"),
        ({**CUDA, "available": False}, Driver("580", "13.0"), [H100], "fail", "sees no GPU"),
        ({**CUDA, "arch": ["sm_100", "sm_120"]}, Driver("580", "13.0"), [H100], "fail", "no code for NVIDIA H100"),
    ],
)
def test_torch_against_driver_and_cards(
    torch: dict[str, Any], driver: Driver, gpus: list[Gpu], state: str, words: str
) -> None:
    check = software._torch_gpus(torch, driver, gpus)
    assert check.state == state
    assert words in check.value
    assert bool(check.fix) == (state == "fail")


@pytest.mark.parametrize(
    ("capability", "arch", "runs"),
    [
        ("9.0", ["sm_80", "sm_90"], True),
        ("8.9", ["sm_80", "sm_86"], True),  # machine code of a smaller minor number
        ("8.0", ["sm_86"], False),
        ("12.0", ["sm_90"], False),
        ("12.0", ["sm_90", "compute_90"], True),
        ("10.3", ["sm_100"], True),
        ("9.0", ["sm_90a"], True),
        ("gfx950", ["gfx942", "gfx950"], True),
        ("gfx950", ["gfx942"], False),
        ("9.0", [], False),
    ],
)
def test_code_for_a_card(capability: str, arch: list[str], runs: bool) -> None:
    assert software.fits(capability, arch) is runs


def test_pins(tmp_path: Path) -> None:
    path = tmp_path / "constraints.txt"
    path.write_text("# tried\ntorch==2.13.0\nHuggingface_Hub == 2.4.0 ; python_version > '3'\nnumpy>=1\n")
    assert software.pins(path) == {"torch": "2.13.0", "huggingface-hub": "2.4.0"}
    assert software.pins(tmp_path / "none") == {}


def test_packages_against_the_pins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "pins", lambda: {"torch": "2.13.0", "trl": "1.16.0"})
    have: dict[str, str | None] = {"torch": "2.13.0+cu130", "trl": "1.16.0", "peft": "0.1"}
    assert software._compare("x", "X", have, ("torch",)).state == "ok"
    other = software._compare("x", "X", {**have, "trl": "1.15.0"}, ("torch",))
    assert (other.state, other.detail) == ("warn", "trl 1.15.0 (1.16.0)")
    missing = software._compare("x", "X", {**have, "trl": None}, ("torch", "trl"))
    assert missing.state == "fail" and "trl" in missing.value and missing.fix


def script(path: Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_a_torch_that_hangs_is_given_up_and_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "TORCH_TIMEOUT_S", 0.3)
    with software.Programs(script(tmp_path / "python", "exec sleep 60")) as programs:
        process = programs._started["torch"][0]
        (check,) = software._torch(programs, Driver(), [])
    assert check.state == "fail" and "did not load" in check.value and check.fix
    assert process is not None and process.poll() is not None


def test_leaving_ends_what_still_runs(tmp_path: Path) -> None:
    with software.Programs(script(tmp_path / "python", "exec sleep 60")) as programs:
        process = programs._started["torch"][0]
    assert process is not None and process.poll() is not None


@pytest.mark.parametrize("body", ["echo 'ImportError: libcudart.so.13' >&2; exit 1", "echo no json", ":"])
def test_a_torch_that_does_not_load(tmp_path: Path, body: str) -> None:
    with software.Programs(script(tmp_path / "python", body)) as programs:
        (check,) = software._torch(programs, Driver(), [])
    assert check.state == "fail" and check.value == "does not load" and check.fix


def test_a_training_python_that_is_not_there(tmp_path: Path) -> None:
    with software.Programs(str(tmp_path / "none")) as programs:
        checks = software.checks(programs, Driver(), [])
    broken = next(check for check in checks if check.id == "train.python")
    assert broken.state == "fail" and "FTUI_PYTHON" in broken.fix


def test_disk_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = disk.Disk(
        "/x", "/", "ext4", "/dev/vda", 100 * machine.GB, 200 * machine.GB, 10**6, False, True, False, "unknown"
    )
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "ok"),
        ({"free": 5 * machine.GB}, "warn"),
        ({"free": 10**8}, "fail"),
        ({"read_only": True}, "fail"),
        ({"writable": False}, "fail"),
        ({"persistence": "temporary"}, "warn"),
        ({"inodes_free": 5}, "warn"),
    ]
    for change, state in cases:
        found = disk.Disk(**{**vars(good), **change})
        monkeypatch.setattr(disk, "describe", lambda _path, found=found: found)
        check = machine.disk_checks(Workspace(tmp_path))[0]
        assert check.state == state, change
        assert bool(check.fix) == (state != "ok")

    def gone(_path: object) -> disk.Disk:
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(disk, "describe", gone)
    assert machine.disk_checks(Workspace(tmp_path))[0].state == "fail"


def test_memory_states(monkeypatch: pytest.MonkeyPatch) -> None:
    base = host.sample()
    for available, state in [(64 * machine.GB, "ok"), (4 * machine.GB, "warn"), (10**8, "fail")]:
        monkeypatch.setattr(host, "sample", lambda available=available: {**base, "memory_available": available})
        assert machine.memory_checks()[0].state == state
    monkeypatch.setattr(host, "shm", lambda: (64 << 20, 64 << 20))
    assert machine._shm_check().state == "warn"
    monkeypatch.setattr(host, "shm", lambda: None)
    assert "--ipc=host" in machine._shm_check().fix
    monkeypatch.setattr(host, "open_files_limit", lambda: (1024, 1048576))
    assert "65536" in machine._files_check().fix


def test_no_tmux_and_an_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Programs:
        text: str | None = None

        def answer(self, _name: str) -> str | None:
            return self.text

    programs = Programs()
    for text, state in [(None, "warn"), ("tmux 3.0a", "warn"), ("tmux 3.3a", "ok"), ("tmux next-3.6", "ok")]:
        programs.text = text
        assert terminal._tmux(programs).state == state  # type: ignore[arg-type]


def test_the_hub_check_never_shows_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    check = terminal._hub()
    assert "offline" in check.value and "token is there" in check.detail
    assert "hf_secret" not in str(check.to_json())
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert "no token" in terminal._hub().detail
    (tmp_path / "token").write_text("hf_other")
    assert "token is there" in terminal._hub().detail


def test_a_clock_before_our_own_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal.time, "time", lambda: 86400.0 * 365)
    assert terminal._clock().state == "warn"


def test_colors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLORTERM", "truecolor")
    assert terminal.colors() == 1 << 24
    monkeypatch.delenv("COLORTERM")
    assert terminal.colors("no-such-terminal") == 0


def test_without_torch_it_is_quick(tmp_path: Path) -> None:
    from engine.hardware import doctor

    begin = time.process_time()
    report = doctor.run(Workspace(tmp_path / "workspace"), sys.executable, torch=False)
    assert time.process_time() - begin < 1.0
    assert not (tmp_path / "workspace").exists(), "looking makes nothing"
    assert len({check.id for check in report.checks}) == len(report.checks)
    assert {"python", "driver", "memory", "disk.workspace", "tmux", "rclone", "hub", "clock"} <= {
        check.id for check in report.checks
    }


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers often run a number that passwd does not know."""
    for name in ("HOME", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 123456789)
    check = machine._disk_check("x", "X", machine.hub_home(), needed=False)
    assert check.value
    assert terminal._hub().value
