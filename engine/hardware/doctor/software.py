"""Checks of the software: Python, packages against the tried versions, torch's build against the driver."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

import orjson

from engine.hardware import versions
from engine.hardware.doctor.check import Check, State
from engine.hardware.gpus import Driver, Gpu, usable
from engine.text import _

MIN_PYTHON = (3, 11)
REQUIRED = ("torch", "transformers", "trl", "peft", "accelerate", "datasets")
CONSTRAINTS = Path(__file__).resolve().parents[3] / "constraints.txt"
TORCH_TIMEOUT_S = 90.0  # a cold import from a network disk; a broken driver can hang it for ever
TOOL_TIMEOUT_S = 10.0

TORCH_SCRIPT = """
import json, torch
cuda = torch.cuda.is_available()
print(json.dumps({"version": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip,
    "available": cuda, "count": torch.cuda.device_count() if cuda else 0,
    "arch": torch.cuda.get_arch_list() if cuda else [],
    "nccl": ".".join(map(str, torch.cuda.nccl.version())) if cuda and not torch.version.hip else None}))
"""


class Programs:
    """Other programs that are asked for their versions, all started at once; ended at the latest on leaving."""

    def __init__(self, python: str, *, torch: bool = True) -> None:
        self.python = python
        self.rclone = _find_rclone()
        self._started: dict[str, tuple[subprocess.Popen[bytes] | None, float]] = {}
        self._answers: dict[str, tuple[int | None, str, str]] = {}
        if torch:
            self._start("torch", [python, "-P", "-c", TORCH_SCRIPT], TORCH_TIMEOUT_S)
        if self.rclone:
            self._start("rclone", [self.rclone, "version"], TOOL_TIMEOUT_S)
        if tmux := shutil.which("tmux"):
            self._start("tmux", [tmux, "-V"], TOOL_TIMEOUT_S)

    def __enter__(self) -> Programs:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process, _timeout in self._started.values():
            if process is not None and process.poll() is None:
                process.kill()
                process.communicate()

    def _start(self, name: str, command: list[str], timeout: float) -> None:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        except OSError:
            process = None
        self._started[name] = process, timeout

    def result(self, name: str) -> tuple[int | None, str, str] | None:
        """Exit code (None: no answer in time, or not startable), stdout and stderr; None when it was not asked."""
        if name not in self._started:
            return None
        if name not in self._answers:
            process, timeout = self._started[name]
            if process is None:
                self._answers[name] = None, "", ""
            else:
                try:
                    out, err = process.communicate(timeout=timeout)
                    self._answers[name] = process.returncode, _decode(out), _decode(err)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.communicate()
                    self._answers[name] = None, "", ""
        return self._answers[name]

    def answer(self, name: str) -> str | None:
        """What the program printed; None when it is not there or failed."""
        result = self.result(name)
        return result[1].strip() or None if result and result[0] == 0 else None


def _decode(data: bytes) -> str:
    return data.decode(errors="replace")


def _find_rclone() -> str | None:
    """The rclone that came with our environment, else the one on the path."""
    beside = Path(sys.executable).parent / "rclone"
    return str(beside) if beside.is_file() else shutil.which("rclone")


def pins(path: Path = CONSTRAINTS) -> dict[str, str]:
    """The tried versions of constraints.txt by normal name; {} where the file did not come along."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    found = re.compile(r"\s*([A-Za-z0-9._-]+)\s*==\s*([^\s;#]+)")
    return {_normal(m[1]): m[2] for line in lines if (m := found.match(line))}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def checks(programs: Programs, driver: Driver, gpus: list[Gpu]) -> list[Check]:
    """All checks of this module; the last ones wait for torch."""
    found = [_python(), _own_packages()]
    try:
        training = versions.packages((*versions.TRAIN, *versions.NCCL), programs.python)
    except OSError as error:
        fix = _("set FTUI_PYTHON, or `python` in the settings, to the Python that has torch")
        return [*found, Check("train.python", "software", _("Training Python"), "fail", str(error), fix=fix)]
    found.append(Check("train.python", "software", _("Training Python"), "ok", training["python"], programs.python))
    found.append(_train_packages(training["packages"]))
    if training["packages"]["torch"]:
        found += _torch(programs, driver, usable(gpus))
    return found


def _python() -> Check:
    good = sys.version_info[:2] >= MIN_PYTHON
    fix = "" if good else _("install Python 3.11 or newer; uv brings one: `uv python install 3.12`")
    return Check("python", "software", "Python", "ok" if good else "fail",
                 ".".join(map(str, sys.version_info[:3])), sys.executable, fix)  # fmt: skip


def _own_packages() -> Check:
    """Our own requirements: present, and at the tried versions."""
    from importlib import metadata

    title = _("Packages")
    try:
        requirements = metadata.requires("finetune-tui") or []
    except metadata.PackageNotFoundError:
        return Check("packages", "software", title, "warn", _("ftui is not installed in this Python"),
                     fix=_("run ./install.sh"))  # fmt: skip
    names = [m[0] for r in requirements if "extra ==" not in r and (m := re.match(r"[A-Za-z0-9._-]+", r))]
    have = versions.packages(tuple(names))["packages"]
    return _compare("packages", title, have, tuple(names))


def _train_packages(have: dict[str, str | None]) -> Check:
    wanted = {name: have[name] for name in versions.TRAIN}
    return _compare("train.packages", _("Training packages"), wanted, REQUIRED)


def _compare(ident: str, title: str, have: dict[str, str | None], required: tuple[str, ...]) -> Check:
    missing = [name for name in required if not have[name]]
    if missing:
        return Check(ident, "software", title, "fail", _("missing: {names}").format(names=", ".join(missing)),
                     fix=_("run ./install.sh again, or install them into that Python"))  # fmt: skip
    tried = pins()
    other = [
        f"{name} {version} ({tried[_normal(name)]})"
        for name, version in have.items()
        # torch 2.13.0+cu130 is the tried 2.13.0 in another build
        if version and _normal(name) in tried and version.partition("+")[0] != tried[_normal(name)].partition("+")[0]
    ]
    versions_text = ", ".join(f"{name} {version}" for name, version in have.items() if version)
    if other:
        return Check(ident, "software", title, "warn", _("not the tried versions"), ", ".join(other),
                     _("the versions in brackets were tried together: pip install -c constraints.txt"))  # fmt: skip
    value = _("the tried versions") if tried else _("all there")
    return Check(ident, "software", title, "ok", value, versions_text)


def _torch(programs: Programs, driver: Driver, gpus: list[Gpu]) -> list[Check]:
    result = programs.result("torch")
    if result is None:
        return []
    code, out, err = result
    title = "torch"
    if code is None:
        value = _("did not load in {n} s").format(n=int(TORCH_TIMEOUT_S))
        fix = _("import it by hand to see where it hangs; a GPU driver in trouble can do that")
        return [Check("torch", "software", title, "fail", value, fix=fix)]
    try:
        torch: dict[str, Any] = orjson.loads(out.strip().splitlines()[-1])
    except (ValueError, IndexError):
        last = err.strip().splitlines()[-1:] or [_("exit code {code}").format(code=code)]
        return [Check("torch", "software", title, "fail", _("does not load"), last[0][:300],
                      _("install torch again into that Python"))]  # fmt: skip
    if torch["hip"]:
        build = _("ROCm {version} build").format(version=torch["hip"])
    elif torch["cuda"]:
        build = _("CUDA {version} build").format(version=torch["cuda"])
    else:
        build = _("CPU build")
    facts = [build]
    if torch["nccl"]:
        facts.append(f"NCCL {torch['nccl']}")
    found = [Check("torch", "software", title, "ok", torch["version"], " · ".join(facts))]
    if gpus or torch["cuda"] or torch["hip"]:
        found.append(_torch_gpus(torch, driver, gpus))
    return found


def _torch_gpus(torch: dict[str, Any], driver: Driver, gpus: list[Gpu]) -> Check:
    """Whether torch's build, the driver and the cards fit each other."""

    def result(state: State, value: str, detail: str = "", fix: str = "") -> Check:
        return Check("torch.gpu", "software", _("torch and GPUs"), state, value, detail, fix)

    reinstall = _("install the torch build for this machine: run ./install.sh again, or `uv pip install torch "
                  "--torch-backend=auto`")  # fmt: skip
    if not gpus:
        return result("ok", _("no GPU to use"))
    if not torch["cuda"] and not torch["hip"]:
        return result("fail", _("this torch cannot use the GPUs"), _("it is the CPU build"), reinstall)
    if (torch["hip"] is not None) != (gpus[0].vendor == "amd"):
        return result("fail", _("this torch is for another maker's GPUs"), "", reinstall)
    if torch["cuda"] and driver.cuda and _major(torch["cuda"]) > _major(driver.cuda):
        detail = _("torch is built for CUDA {built}, the driver {driver} goes up to CUDA {cuda}").format(
            built=torch["cuda"], driver=driver.version, cuda=driver.cuda
        )
        return result("fail", _("the driver is too old for this torch"), detail,
                      _("update the driver, or install torch for CUDA {cuda}").format(cuda=driver.cuda))  # fmt: skip
    if not torch["available"]:
        return result("fail", _("torch sees no GPU although the driver does"), "",
                      _("check CUDA_VISIBLE_DEVICES and the access to /dev/nvidia* or /dev/kfd"))  # fmt: skip
    unfit = sorted({gpu.name for gpu in gpus if gpu.capability and not fits(gpu.capability, torch["arch"])})
    if unfit:
        detail = _("built for {arch}").format(arch=", ".join(torch["arch"]))
        return result("fail", _("this torch has no code for {names}").format(names=", ".join(unfit)), detail, reinstall)
    return result("ok", _("{n} usable").format(n=torch["count"]))


def _major(version: str) -> int:
    """Within a major version of CUDA any driver runs any build (minor version compatibility)."""
    return int(version.partition(".")[0])


def fits(capability: str, arch: list[str]) -> bool:
    """Whether code built for `arch` (torch.cuda.get_arch_list) runs on a card of that capability.

    Machine code runs on cards of its own major capability from its minor one on; PTX (compute_) on all newer cards.
    """
    if capability.startswith("gfx"):
        return any(name.partition(":")[0] == capability for name in arch)
    major, _dot, minor = capability.partition(".")
    card = int(major), int(minor or 0)
    for name in arch:
        kind, _under, digits = name.partition("_")
        digits = digits.rstrip("af")  # sm_90a, sm_100f
        if not digits.isdigit():
            continue
        built = int(digits[:-1]), int(digits[-1])
        if built <= card and (kind == "compute" or built[0] == card[0]):
            return True
    return False
