"""Run folders made of real files (docs/files.md), without training: the same numbers every time.

`FakeRun` writes through engine.journal and engine.files, as the ranks and the supervisor do; only the figures are
made up. `live=True` names this test process as the supervisor, so that readers take the run for alive.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from engine.checkpoint.manifest import seal
from engine.files import write_json
from engine.journal import JournalWriter
from engine.workspace import RunFolder, Workspace

BASE_TIME = 1_764_000_000.0  # Mon 24 Nov 2025 16:00 UTC
STEP_TIME = 1.62
GB = 10**9
GONE = {"pid": 1, "start": 1, "boot": "00000000-0000-0000-0000-000000000000"}


def own_identity() -> dict[str, Any]:
    """This process as state.json names a process: pid, start in clock ticks, boot id."""
    stat = Path("/proc/self/stat").read_text()
    start = int(stat[stat.rindex(")") + 2 :].split()[19])
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return {"pid": os.getpid(), "start": start, "boot": boot}


def losses(count: int, *, seed: int = 7, floor: float = 0.95, drop: float = 1.5) -> np.ndarray:
    """A training loss of `count` steps: a falling curve with noise that shrinks."""
    noise = np.random.default_rng(seed).normal(0.0, 1.0, count)
    steps = np.arange(1, count + 1)
    curve = floor + drop * np.exp(-steps / (0.22 * max(count, 8))) + 0.12 * np.exp(-steps / max(count, 8))
    return np.round(curve + noise * (0.05 + 0.06 * np.exp(-steps / (0.3 * max(count, 8)))), 4)


class FakeRun:
    """One run folder; methods add to its files in the order in which a real run would."""

    def __init__(
        self,
        workspace: Path,
        name: str = "llama-70b-lora",
        *,
        state: str = "running",
        max_steps: int = 4800,
        gpus: int = 8,
        live: bool = True,
        recipe: dict[str, Any] | None = None,
    ) -> None:
        self.workspace = Workspace(workspace).prepare()
        self.run = RunFolder(self.workspace.runs_dir / name)
        self.run.logs.mkdir(parents=True)
        self.run.checkpoints.mkdir()
        self.gpus = gpus
        self.uuids = [f"GPU-{index:08d}" for index in range(gpus)]
        self.attempt = 1
        self.step = 0
        self.time = BASE_TIME
        self.safe_time = BASE_TIME  # since when the training would be lost
        device = "cuda" if gpus else "cpu"
        method = {"method": "lora", "model_name_or_path": "/models/Llama-3.1-70B", "lora_r": 16}
        resolved = {"format": 1, "run": name, "recipe": recipe or method, "origin": {}}
        write_json(self.run.resolved, resolved, durable=False)
        self.run.recipe.write_text("method: lora\nmodel_name_or_path: /models/Llama-3.1-70B\n", encoding="utf-8")
        self.state: dict[str, Any] = {
            "format": 1,
            "run": name,
            "state": state,
            "phase": "train",
            "step": 0,
            "max_steps": max_steps,
            "loss": None,
            "eval_loss": None,
            "epoch": 0.0,
            "eta_s": None,
            "tokens_per_s": None,
            "attempt": 1,
            "restarts": 0,
            "device": device,
            "world_size": max(gpus, 1),
            "gpus": self.uuids,
            "supervisor": own_identity() if live else GONE,
            "launcher": own_identity() if live else GONE,
            "control": str(self.run.control),
            "created": BASE_TIME - 60,
            "started": BASE_TIME - 45,
            "ended": None,
            "updated": BASE_TIME,
            "last_checkpoint": None,
            "unsaved_s": None,
            "earlier_s": 0.0,
            "error": None,
            "exit_code": None,
        }
        self.write_state()

    def write_state(self, **changes: Any) -> None:
        """Replace state.json, with some fields changed."""
        self.state.update(changes)
        write_json(self.run.state, self.state, durable=False)

    def event(self, event: str, **fields: Any) -> None:
        """Append to events.jsonl at the run's present time."""
        self._append(self.run.events, event, fields)

    def journal(self, event: str, **fields: Any) -> None:
        """Append to journal.jsonl at the run's present time."""
        self._append(self.run.journal, event, {"attempt": self.attempt, **fields})

    def _append(self, path: Path, event: str, fields: dict[str, Any]) -> None:
        writer = JournalWriter(path, time=self.time)
        writer.append(event, **fields)
        writer.close()

    def begin(self, *, step: int = 0) -> None:
        """The first lines of an attempt."""
        self.step = step
        self.safe_time = self.time
        self.event("launched", attempt=self.attempt, command=["python"], gpus=self.uuids)
        self.journal(
            "start",
            step=step,
            max_steps=self.state["max_steps"],
            world_size=max(self.gpus, 1),
            device=self.state["device"],
            dtype="bfloat16",
            resumed_from=None,
        )
        self.event("running", attempt=self.attempt)

    def train(self, values: Any, *, every: int = 1, eval_every: int = 0) -> None:
        """Log one loss each `every` steps, in one write, with evaluations between."""
        lines: list[bytes] = []
        world = max(self.gpus, 1)
        per_epoch = max(1.0, self.state["max_steps"] / 2)
        for value in values:
            self.step += every
            self.time += STEP_TIME * every
            line = {
                "event": "log",
                "time": self.time,
                "attempt": self.attempt,
                "step": self.step,
                "loss": float(value),
                "learning_rate": 1e-4 * (0.5 + 0.5 * math.cos(math.pi * self.step / self.state["max_steps"])),
                "grad_norm": 0.43,
                "epoch": round(self.step / per_epoch, 4),
                "tokens_seen": self.step * 16384,
                "tokens_per_s": 10112.0 if self.gpus else 5210.0,
                "step_time_s": STEP_TIME,
                "mfu": 0.41 if self.gpus else None,
                "memory_allocated": [31 * GB] * world,
                "memory_reserved": [35 * GB] * world,
            }
            lines.append(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
            if eval_every and self.step % eval_every == 0 and math.isfinite(value):
                row = {"event": "eval", "time": self.time, "attempt": self.attempt, "step": self.step}
                row["eval_loss"] = round(1.0 + 1.4 * math.exp(-self.step / (0.25 * self.state["max_steps"])), 4)
                lines.append(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))
        with open(self.run.journal, "ab") as file:
            file.write(b"".join(lines))
        left = self.state["max_steps"] - self.step
        last = float(values[-1]) if len(values) else None
        if last is not None and not math.isfinite(last):
            last = None
        self.write_state(
            step=self.step,
            loss=last,
            epoch=round(self.step / per_epoch, 4),
            eta_s=left * STEP_TIME,
            tokens_per_s=10112.0,
            attempt=self.attempt,
            unsaved_s=self.time - self.safe_time,
            updated=self.time,
        )

    def checkpoint(self) -> None:
        """A sealed checkpoint at the present step, as the journal, the events and state.json tell of it."""
        path = f"checkpoints/checkpoint-{self.step}"
        staging = self.run.checkpoints / f".staging-{self.step}"
        staging.mkdir()
        ranks = max(self.gpus, 1)
        random = ["rng_state.pth"] if ranks == 1 else [f"rng_state_{rank}.pth" for rank in range(ranks)]
        for name in ("optimizer.pt", "scheduler.pt", "trainer_state.json", *random):
            (staging / name).write_text(name)
        seal(staging, self.run.path / path, {"step": self.step, "world_size": ranks, "attempt": self.attempt})
        self.journal("save_begin", step=self.step)
        self.journal("save", step=self.step, path=path, seconds=2.1, bytes=int(2.9 * GB))
        self.event("checkpoint", step=self.step, seconds=2.1)
        self.safe_time = self.time
        self.write_state(last_checkpoint={"step": self.step, "path": path, "time": self.time}, unsaved_s=0.0)

    def sample(self, *, used: float = 37.1 * GB, total: float = 80 * GB, **changes: Any) -> None:
        """One line of hardware.jsonl; `changes` maps "gpu<N>" to fields of that GPU."""
        gpus = []
        for index in range(self.gpus):
            gpu = {
                "index": index,
                "uuid": self.uuids[index],
                "name": "NVIDIA H100 80GB HBM3",
                "state": "ok",
                "memory_used": int(used - (index % 3) * 0.1 * GB),
                "memory_total": int(total),
                "utilization": 98 - index % 4,
                "temperature": 60 + index % 5,
                "power": 640.0 + 3 * index,
                "power_limit": 700.0,
                "ecc_errors": 0,
                "xid": None,
                "processes": [{"pid": 4000 + index, "memory": int(used)}],
            }
            gpu.update(changes.get(f"gpu{index}", {}))
            gpus.append(gpu)
        host = {
            "memory_used": 212 * GB if self.gpus else 9 * GB,
            "memory_total": 2164 * GB if self.gpus else 25 * GB,
            "memory_ranks": 141 * GB if self.gpus else int(1.4 * GB),
            "cpu": 34.0,
        }
        disk = {"path": "/data", "free": int(1.7e12), "total": int(3.8e12)}
        line = orjson.dumps(
            {"time": self.time, "gpus": gpus, "host": host, "disk": disk}, option=orjson.OPT_APPEND_NEWLINE
        )
        with open(self.run.hardware, "ab") as file:
            file.write(line)

    def log(self, text: str, *, rank: int | None = 0) -> None:
        """Append text to a rank's log, or the launcher's."""
        name = "launcher.log" if rank is None else f"rank-{rank}.log"
        with open(self.run.logs / name, "a", encoding="utf-8") as file:
            file.write(text)

    def end(self, state: str, *, error: dict[str, Any] | None = None) -> None:
        """The last lines of a run that stopped, ended or failed."""
        self.time += 2.0
        self.journal("end", step=self.step, outcome=state, saved_step=self.step)
        self.event(state, **({"error": error} if error else {}))
        self.write_state(
            state=state, phase="save", ended=self.time, eta_s=None, error=error, exit_code=int(error is not None)
        )


def running(workspace: Path, *, steps: int = 1240, gpus: int = 8, name: str = "llama-70b-lora") -> FakeRun:
    """A healthy run in its middle: two checkpoints, evaluations, one hardware sample, some log."""
    fake = FakeRun(workspace, name, gpus=gpus)
    fake.event("created")
    fake.begin()
    values = losses(4800)[:steps]
    first = min(len(values), 1200)
    fake.train(values[:first], eval_every=200)
    if first == 1200:
        fake.checkpoint()
        fake.train(values[first:], eval_every=200)
    fake.sample()
    fake.log("loading /models/Llama-3.1-70B\n\x1b[32mtraining\x1b[0m starts\n")
    return fake


def failed(workspace: Path, *, name: str = "qwen3-8b-smoke") -> FakeRun:
    """A run that ran out of memory."""
    fake = FakeRun(workspace, name, gpus=1, live=False)
    fake.begin()
    fake.train(losses(311), eval_every=100)
    fake.sample(used=79.2 * GB)
    fake.log("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.32 GiB.\n")
    error = {
        "kind": "out_of_memory",
        "message": "GPU 0 ran out of memory: 2.3 GB more were asked for, 0.6 GB were free",
        "where": "logs/rank-0.log",
        "fix": "halve per_device_train_batch_size, or turn gradient_checkpointing on",
    }
    fake.end("failed", error=error)
    return fake


def lost(workspace: Path, *, name: str = "lost-run") -> FakeRun:
    """A run whose supervisor is gone: state.json still says that it runs."""
    fake = FakeRun(workspace, name, gpus=2, live=False, max_steps=1000)
    fake.begin()
    fake.train(losses(400), eval_every=100)
    fake.checkpoint()
    fake.train(losses(440)[400:])
    fake.sample()
    return fake


def write_journal(path: Path, lines: int) -> None:
    """A journal of `lines` log lines, written fast (for benchmarks and tests of size)."""
    rng = np.random.default_rng(3)
    template = (
        '{"event":"log","time":%.3f,"attempt":1,"step":%d,"loss":%.4f,"learning_rate":%.6e,"grad_norm":%.4f,'
        '"epoch":%.5f,"tokens_seen":%d,"tokens_per_s":%.1f,"step_time_s":%.3f,"mfu":0.41,'
        '"memory_allocated":[31000000000],"memory_reserved":[35000000000]}\n'
    )
    with open(path, "w", encoding="ascii") as file:
        for begin in range(0, lines, 10_000):
            count = min(10_000, lines - begin)
            noise = rng.normal(0, 0.08, count)
            block = []
            for i in range(count):
                step = begin + i + 1
                loss = 0.9 + 1.8 * math.exp(-step / (0.15 * lines)) + noise[i]
                row = (BASE_TIME + step, step, loss, 1e-4, 0.4, step / lines, step * 8192, 10112.0, 1.0)
                block.append(template % row)
            file.write("".join(block))
