"""Versions: packages of a Python without importing them, NCCL, the driver, the system."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson

TRAIN = ("torch", "transformers", "trl", "peft", "accelerate", "datasets", "bitsandbytes", "tokenizers", "safetensors")
ALSO = ("deepspeed", "flash-attn", "liger-kernel", "unsloth", "triton", "numpy", "huggingface_hub", "finetune-tui")
NCCL = ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")
TIMEOUT_S = 20.0

# Runs in the other Python, which need not have our package.
SCRIPT = """
import importlib.metadata as m, json, platform, sys
def version(name):
    try: return m.version(name)
    except Exception: return None
print(json.dumps({"python": platform.python_version(), "executable": sys.executable,
                  "packages": {n: version(n) for n in sys.argv[1:]}}))
"""


def packages(names: tuple[str, ...], python: str | None = None) -> dict[str, Any]:
    """`{"python", "executable", "packages": {name: version or None}}` of an interpreter.

    Args:
        names: distribution names.
        python: another interpreter's path; this one without.

    Raises:
        OSError: that interpreter cannot be started or does not answer in time.
    """
    if python is None or _is_this(python):
        from importlib import metadata

        found: dict[str, str | None] = {}
        for name in names:
            try:
                found[name] = metadata.version(name)
            except metadata.PackageNotFoundError:
                found[name] = None
        return {"python": platform.python_version(), "executable": sys.executable, "packages": found}
    try:
        done = subprocess.run(
            [python, "-P", "-c", SCRIPT, *names],
            capture_output=True,
            timeout=TIMEOUT_S,
            check=True,
            stdin=subprocess.DEVNULL,
        )
        value: dict[str, Any] = orjson.loads(done.stdout)
        return value
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(f"{python} did not answer in {TIMEOUT_S:.0f} s") from error
    except (subprocess.CalledProcessError, ValueError) as error:
        raise OSError(f"{python} is not a working Python 3.11 or newer") from error


def _is_this(python: str) -> bool:
    """A virtual environment's python is a link to the system's: the same file with other packages is another one."""
    other, this = Path(python).absolute(), Path(sys.executable).absolute()
    return other.parent == this.parent and os.path.realpath(other) == os.path.realpath(this)


def system() -> dict[str, str | None]:
    """Operating system, kernel, C library and machine type."""
    try:
        name: str | None = platform.freedesktop_os_release().get("PRETTY_NAME")
    except OSError:
        name = None
    return {
        "os": name or platform.system(),
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()).strip() or None,
        "machine": platform.machine(),
    }


def collect(python: str | None = None) -> dict[str, Any]:
    """Everything that a rerun would need to know: interpreter, packages, NCCL, driver, system.

    Args:
        python: the training interpreter; this one without.

    Raises:
        OSError: that interpreter cannot be started.
    """
    from engine.hardware.gpus import Probe

    found = packages((*TRAIN, *ALSO, *NCCL), python)
    nccl = next(filter(None, [found["packages"].pop(name) for name in NCCL]), None)
    for name in ALSO:
        if found["packages"][name] is None:
            del found["packages"][name]
    with Probe() as probe:
        driver = probe.driver
    return {**found, "nccl": nccl, "driver": driver.version, "cuda": driver.cuda, **system()}
