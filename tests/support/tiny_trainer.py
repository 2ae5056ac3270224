"""A real trainer on a model of a few numbers, with our saves: a whole life of a rank in milliseconds.

Processes are forked from one that has loaded torch, so that hundreds of them can be killed in a test.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.checkpoint import choice, retention
from engine.journal import read_all
from engine.workspace import RunFolder

STEPS = 60
EVERY = 3


@dataclass
class Life:
    """How one start of the run goes."""

    run: RunFolder
    attempt: int
    ranks: int = 1
    background: bool | None = True
    steps: int = STEPS
    policy: retention.Policy = field(default_factory=lambda: retention.Policy(keep_last=2))
    width: int = 64
    prepare: Callable[[int], None] | None = None  # in the rank, before it trains: faults
    patience: float | None = None


def start(life: Life) -> list[int]:
    """Fork the ranks of a life; their pids."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    pids = []
    for index in range(life.ranks):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                _rank(life, index, port)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                with contextlib.suppress(Exception):
                    sys.stdout.flush()
                    sys.stderr.flush()
                os._exit(code)
        pids.append(pid)
    return pids


def wait(pids: list[int], seconds: float = 120) -> list[int]:
    """The exit codes of the ranks (negative: the signal that ended them); those that hang are killed."""
    deadline = time.monotonic() + seconds
    codes: dict[int, int] = {}
    while len(codes) < len(pids):
        for pid in pids:
            if pid not in codes:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    codes[pid] = os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            for pid in pids:
                if pid not in codes:
                    os.kill(pid, signal.SIGKILL)
            deadline += 5
        time.sleep(0.002)
    return [codes[pid] for pid in pids]


def losses(run: RunFolder) -> dict[int, float]:
    """Step to loss; the newest attempt wins."""
    return {e["step"]: e["loss"] for e in read_all(run.journal) if e["event"] == "log"}


def sealed_steps(run: RunFolder) -> list[int]:
    """The steps that the journal calls saved, in its order."""
    return [e["step"] for e in read_all(run.journal) if e["event"] == "save"]


def _rank(life: Life, index: int, port: int) -> None:
    import torch
    import transformers
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from engine.train.events import Events
    from engine.train.rank import Rank
    from engine.train.ranks import Ranks
    from engine.train.saving import Saver, SealedSaving

    log = os.open(life.run.path / f"rank-{index}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    transformers.utils.logging.disable_progress_bar()
    if life.ranks > 1:
        os.environ.update(
            RANK=str(index), LOCAL_RANK=str(index), WORLD_SIZE=str(life.ranks), LOCAL_WORLD_SIZE=str(life.ranks),
            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
        )  # fmt: skip

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Linear(8, life.width)
            self.drop = torch.nn.Dropout(0.2)
            self.second = torch.nn.Linear(life.width, 1)

        def forward(self, x: Any, labels: Any) -> dict[str, Any]:
            out = self.second(self.drop(torch.tanh(self.first(x)))).squeeze(-1)
            return {"loss": torch.nn.functional.mse_loss(out, labels), "logits": out}

    class Tiny(SealedSaving, Trainer):
        pass

    class Journal(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_k: Any) -> None:
            if logs and "loss" in logs:
                events.append("log", step=state.global_step, loss=logs["loss"])
                saver.metrics.update(eval_loss=logs["loss"])

    torch.set_num_threads(1)
    transformers.set_seed(1)
    data = torch.Generator().manual_seed(5)
    rows = [{"x": torch.randn(8, generator=data), "labels": torch.randn((), generator=data)} for _ in range(48)]
    chosen = choice.choose(life.run.checkpoints) if life.run.checkpoints.is_dir() else choice.Choice(None)
    rank = Rank(life.run, index, index, life.ranks, life.attempt, None)
    arguments = TrainingArguments(
        output_dir=str(life.run.checkpoints), use_cpu=True, max_steps=life.steps, save_steps=EVERY, logging_steps=1,
        per_device_train_batch_size=4 // life.ranks, report_to=[], disable_tqdm=True, learning_rate=1e-2,
        logging_nan_inf_filter=False, lr_scheduler_type="constant",
    )  # fmt: skip
    ranks = Ranks(rank)
    ranks.connect()
    events = Events(life.run.journal if index == 0 else None, life.attempt)
    trainer = Tiny(model=Model(), args=arguments, train_dataset=rows)
    saver = Saver(
        life.run.checkpoints,
        ranks,
        events,
        policy=life.policy,
        meta={"attempt": life.attempt, "world_size": life.ranks},
        background=life.background,
    )
    if life.patience is not None:
        saver.patience = life.patience
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.saver = saver
    trainer.add_callback(Journal())
    if index == 0:
        life.run.checkpoints.mkdir(exist_ok=True)
        retention.clean(life.run.checkpoints)
    ranks.gather(None)
    if life.prepare is not None:
        life.prepare(index)
    if chosen.entry is not None:
        saver.saved_step = chosen.entry.step
    resumed = chosen.entry.step if chosen.entry else 0
    events.append("start", step=resumed, resumed_from=str(chosen.entry.path) if chosen.entry else None)
    trainer.train(resume_from_checkpoint=str(chosen.entry.path) if chosen.entry else None)
    events.append("end", step=trainer.state.global_step, outcome="done", saved_step=saver.saved_step)
    ranks.gather(None)
    ranks.close()


class SelfDestruct:
    """Kills its process with SIGKILL at the n-th of the operations that a save consists of."""

    def __init__(self, at: int) -> None:
        self.left = at

    def install(self) -> None:
        """Count writes, syncs, renames and removals of this process from now on."""
        import shutil

        for home, name in (
            (os, "write"), (os, "fsync"), (os, "replace"), (os, "open"), (os, "unlink"), (os, "mkdir"),
            (Path, "rename"), (shutil, "rmtree"),
        ):  # fmt: skip
            setattr(home, name, self._counted(getattr(home, name)))

    def _counted(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.left -= 1
            if self.left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*args, **kwargs)

        return counted


def faults(chance: random.Random, share: float) -> Callable[[int], None]:
    """Let some writes fail as on a full disk; `share` of those that write much."""

    def prepare(index: int) -> None:
        from engine.train import writing

        dice = random.Random(chance.random() + index)
        original = writing.write_all

        def write_all(fd: int, piece: Any) -> None:
            if dice.random() < share:
                raise OSError(28, "No space left on device")
            original(fd, piece)

        writing.write_all = write_all  # type: ignore[assignment]

    return prepare


def everything_readable(run: RunFolder) -> Iterator[str]:
    """What is wrong with any checkpoint that counts as whole: its numbers must be those of its step."""
    import torch

    from engine.checkpoint import ledger, manifest

    for entry in ledger.list(run.checkpoints):
        if not entry.resumable:
            continue
        content = manifest.read(entry.path)
        if content is None or manifest.damage(entry.path, content, check_hash=True):
            yield f"{entry.path.name} is not what was sealed"
        optimizer = torch.load(entry.path / "optimizer.pt", weights_only=True)
        if {int(s["step"]) for s in optimizer["state"].values()} != {entry.step}:
            yield f"{entry.path.name} holds another step's optimizer"
