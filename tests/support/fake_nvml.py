"""GPUs for tests: a fake `libnvidia-ml.so.1` that real programs load through the real pynvml.

Import the fixture where it is needed (`from tests.support.fake_nvml import fake_nvml`) and write:

    def test_something(fake_nvml):
        gpus = fake_nvml                        # 8 idle H100s
        env = {**os.environ, **gpus.env}        # LD_LIBRARY_PATH and FTUI_FAKE_NVML
        subprocess.Popen([...], env=env)        # the program sees the GPUs
        gpus.set(0, memory_used=40 << 30, utilization=97, processes={4711: 39 << 30})
        gpus.xid(3, 79)                         # the driver reports Xid 79 for GPU 3
        gpus.lose(3)                            # GPU 3 falls off the bus, while the program runs
        gpus.restore(3)                         # it is back for sessions opened from now on
        gpus.split(1, ["3g.40gb", "4g.40gb"])   # MIG
        gpus.set(2, temperature=None)           # N/A
        gpus.set(2, name="!4")                  # this call fails with NVML error 4 (no permission)
        gpus.driver(init=18)                    # nvmlInit says: driver/library version mismatch

The loader reads LD_LIBRARY_PATH when a process starts: use a subprocess, not the test's own process. Without
FTUI_FAKE_NVML the library says "driver not loaded". `build(folder)` and `Scenario(path, library, count)` make one
without the fixture.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).with_name("fake_nvml.c")
GIB = 1 << 30


def build(folder: Path) -> Path:
    """Compile the library into `folder` (once) and return its path."""
    library = folder / "libnvidia-ml.so.1"
    if not library.exists():
        compiler = shutil.which("gcc") or shutil.which("cc")
        if compiler is None:
            pytest.skip("no C compiler for the fake NVML")
        temporary = folder / f".libnvidia-ml.{os.getpid()}"
        subprocess.run(
            [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-Wl,-soname,libnvidia-ml.so.1",
             "-o", str(temporary), str(SOURCE)],
            check=True, timeout=60,
        )  # fmt: skip
        temporary.rename(library)
    return library


class Scenario:
    """The machine that the fake library shows; every change is on disk when the method returns."""

    def __init__(self, path: Path, library: Path, count: int = 8, name: str = "NVIDIA H100 80GB HBM3") -> None:
        self.path = path
        self.system: dict[str, Any] = {"count": count, "driver": "580.95.05", "cuda": 13000}
        self.gpus = [
            {
                "name": name,
                "uuid": f"GPU-{i:08d}-0000-4000-8000-{i:012d}",
                "bus": f"00000000:{16 + i:02X}:00.0",
                "memory_total": 85520809984,
                "memory_used": 4 << 20,
                "utilization": 0,
                "temperature": 30 + i,
                "power": 70000 + i,
                "power_limit": 700000,
                "ecc": 1,
                "ecc_errors": 0,
                "mig": 0,
                "persistence": 1,
                "throttle": 1,
                "capability": "9.0",
                "processes": {},
            }
            for i in range(count)
        ]
        self._events = 0
        self.env = {
            "LD_LIBRARY_PATH": os.pathsep.join(filter(None, [str(library.parent), os.environ.get("LD_LIBRARY_PATH")])),
            "FTUI_FAKE_NVML": str(path),
        }
        self.write()

    def set(self, gpu: int, **fields: Any) -> None:
        """Change fields of a GPU: bytes, percent, °C, milliwatts; `processes` is {pid: bytes}; None is N/A."""
        self.gpus[gpu].update(fields)
        self.write()

    def lose(self, gpu: int) -> None:
        """The GPU falls off the bus: calls fail now, and new sessions do not list it."""
        self.set(gpu, lost=1, absent=1)

    def restore(self, gpu: int) -> None:
        """The GPU is back; as with the real driver, only sessions opened from now on see it."""
        self.set(gpu, lost=0, absent=0)

    def xid(self, gpu: int, code: int) -> None:
        """The driver reports an Xid."""
        self._events += 1
        self.driver(**{f"event.{self._events}": f"{gpu} {code}"})

    def split(self, gpu: int, profiles: list[str]) -> None:
        """Cut a GPU into MIG instances, for example ["3g.40gb", "4g.40gb"]."""
        fields: dict[str, Any] = {"mig": 1, "utilization": None}
        for i, profile in enumerate(profiles):
            fields[f"mig.{i}.name"] = f"{self.gpus[gpu]['name']} MIG {profile}"
            fields[f"mig.{i}.uuid"] = f"MIG-{gpu:08d}-0000-4000-8000-{i:012d}"
            fields[f"mig.{i}.memory_total"] = int(profile.split(".")[1][:-2]) * GIB
            fields[f"mig.{i}.memory_used"] = 1 << 20
            fields[f"mig.{i}.processes"] = {}
        self.set(gpu, **fields)

    def driver(self, **fields: Any) -> None:
        """Change the driver: `init` (NVML error of nvmlInit), `down` (error of every call), `driver`, `cuda`."""
        self.system.update(fields)
        self.write()

    def write(self) -> None:
        """Replace the scenario file in one step."""
        lines = [f"{key}={value}" for key, value in self.system.items()]
        for index, gpu in enumerate(self.gpus):
            lines += [f"gpu.{index}.{key}={_show(value)}" for key, value in gpu.items()]
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text("\n".join(lines) + "\n")
        temporary.rename(self.path)


def _show(value: Any) -> str:
    if value is None:
        return "N/A"
    if isinstance(value, dict):
        return ",".join(f"{pid}:{'N/A' if size is None else size}" for pid, size in value.items())
    return str(value)


@pytest.fixture(scope="session")
def fake_nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled library, once a session."""
    return build(tmp_path_factory.mktemp("fake-nvml"))


@pytest.fixture
def fake_nvml(fake_nvml_library: Path, tmp_path: Path) -> Scenario:
    """Eight idle H100s; give `.env` to a subprocess and edit the scenario while it runs."""
    return Scenario(tmp_path / "fake-nvml.scenario", fake_nvml_library)
