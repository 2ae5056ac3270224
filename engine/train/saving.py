"""The trainer's side of a save: what goes into it is taken by all ranks together, then written by each alone.

A failed save (disk full on any rank) costs the run nothing but that checkpoint. The trainer's own way would end
the training, leave half a folder that its resume takes for a checkpoint, and rotate old ones away by name.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers.trainer import SCHEDULER_NAME, TRAINER_STATE_NAME
from transformers.trainer_callback import ExportableState

from engine.checkpoint import retention
from engine.files import read_json
from engine.hardware import host
from engine.text import _, gigabytes
from engine.train import exporting
from engine.train.commit import Commit, Order, reason_of
from engine.train.events import Events
from engine.train.ranks import Ranks
from engine.train.staging import Capture, HostMemory
from engine.train.verdict import Verdicts

MARGIN = 1.05
HOST_MARGIN = 1.25  # a copy of the state must leave that much more of the host's memory free
PATIENCE_S = 600.0  # and for what is written, the time that a slow disk takes for it
SLOWEST = 10_000_000  # bytes a second


class Saver:
    """Makes sealed checkpoints of one trainer. `meta` are the manifest's fields that stay the same.

    Args:
        background: write while the model trains on; None: where the host's memory has room for a copy.
    """

    def __init__(
        self,
        folder: Path,
        ranks: Ranks,
        events: Events,
        *,
        policy: retention.Policy,
        meta: dict[str, Any],
        background: bool | None = None,
    ) -> None:
        self.folder = folder
        self.ranks = ranks
        self.events = events
        self.policy = policy
        self.meta = meta
        self.background = background
        self.patience = PATIENCE_S
        self.metrics: dict[str, Any] = {}  # the newest of each, for the manifest
        self.saved_step: int | None = None
        self._verdicts = Verdicts(ranks)
        self._memory = HostMemory()
        self._under_way: Commit | None = None
        self._settled = True  # what became of it is known, and the same to all ranks
        self._best_before: str | None = None
        self._planners: dict[str, Any] = {}
        self._number = 0
        self._expected = 0  # bytes of a whole checkpoint, as the last one took
        self._own = 0  # of this rank's part

    def save(self, trainer: Any) -> None:
        """Save the trainer's state at its current step; a failure is journaled and the training goes on."""
        step = int(trainer.state.global_step)
        self._verdicts.connect()
        waited = self.wait(trainer)
        if self.saved_step == step:
            return
        began = time.monotonic()
        last = trainer.control.should_training_stop or step >= trainer.state.max_steps  # nothing to write it beside
        background = not last and self._may_write_later(trainer.model)
        self.events.append("save_begin", step=step, background=background)
        staging, final = self.folder / f".staging-{step}", self.folder / f"checkpoint-{step}"
        self._best_before = trainer.state.best_model_checkpoint
        trainer.store_flos()
        capture = Capture(staging, self._memory if background else None)
        parts: list[Any] = []
        reason = (
            self._stuck()
            or self._together(lambda: self._prepare(trainer, staging), first_only=True)
            or self._together(lambda: self._take(trainer, capture, parts, final))
        )
        total = sum(self.ranks.gather(capture.bytes))
        reason = reason or self._together(lambda: self._require_room(total), first_only=True)
        if reason:
            self._give_up(trainer, staging, step, reason)
            return
        self._own, self._expected = capture.bytes, total
        self._number += 1
        blocked = round(time.monotonic() - began, 3)
        order = Order(
            number=self._number,
            step=step,
            staging=staging,
            final=final,
            capture=capture,
            parts=parts,
            meta={**self.meta, "step": step, "metrics": {**self.metrics, "epoch": trainer.state.epoch}},
            best=trainer.state.best_model_checkpoint,
            policy=self.policy,
            patience=self.patience + total / SLOWEST,
            began=began,
            told={"background": background, "waited_s": round(waited, 3)},
        )
        self._under_way, self._settled = Commit(order, self._verdicts, self.events), False
        if background:
            order.told["blocked_s"] = blocked
            self.events.append("save_staged", step=step, bytes=total, blocked_s=blocked, waited_s=round(waited, 3))
        self._under_way.start()
        if not background:
            self.wait(trainer)

    def wait(self, trainer: Any) -> float:
        """Wait for a save that is being written, and take note of what became of it; the seconds that took."""
        commit = self._under_way
        if commit is None or self._settled:  # the same on all ranks
            return 0.0
        began = time.monotonic()
        commit.join(2 * commit.order.patience)
        told = _("its part is not written yet") if commit.is_alive() else commit.reason
        told = self.ranks.gather(told)[0]  # what rank 0 did is what counts
        self._settled = True
        if told is None:
            self.saved_step = commit.order.step
            self._expected = commit.bytes or self._expected
        elif trainer.state.best_model_checkpoint == str(commit.order.final):
            trainer.state.best_model_checkpoint = self._best_before
        return time.monotonic() - began

    def let_finish(self) -> None:
        """Wait for what is being written, on this rank alone: the others may be gone."""
        if self._under_way is not None:
            self._under_way.join(self._under_way.order.patience)

    def warm_up(self, model: Any) -> None:
        """Get the memory for the first save in the background before it is needed; all ranks must call it."""
        if self._may_write_later(model):
            threading.Thread(target=self._reserve, args=(_estimate(model),), daemon=True).start()

    def _reserve(self, size: int) -> None:
        with contextlib.suppress(RuntimeError, MemoryError):  # then the save itself finds out
            self._memory.reserve(size)

    def _stuck(self) -> str | None:
        """A rank that still writes the part before, long after it was given up."""
        stuck = self.ranks.gather(self._under_way is not None and self._under_way.is_alive())
        if not any(stuck):
            return None
        return _("rank {rank} still writes the checkpoint before: its disk hangs").format(rank=stuck.index(True))

    def _give_up(self, trainer: Any, staging: Path, step: int, reason: str) -> None:
        trainer.state.best_model_checkpoint = self._best_before
        if self.ranks.first:
            shutil.rmtree(staging, ignore_errors=True)
        self.events.append("save_failed", step=step, reason=reason)

    def _together(self, work: Callable[[], None], *, first_only: bool = False) -> str | None:
        """Do a part of the save; why it failed on any rank, for all ranks, or None."""
        reason = None
        if self.ranks.first or not first_only:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - whatever it was, the other ranks must hear of it
                reason = reason_of(error, self.folder)
        return next((told for told in self.ranks.gather(reason) if told), None)

    def _may_write_later(self, model: Any) -> bool:
        """Whether to write in the background: as the recipe says, else where all ranks have room for their copies."""
        if self.background is not None:
            return self.background
        more = sum(self.ranks.gather(max(0, (self._own or _estimate(model)) - self._memory.held)))
        enough = more == 0 or more * HOST_MARGIN < host.sample()["memory_available"]  # all ranks are on this host
        return not any(self.ranks.highest([not enough]))

    def _prepare(self, trainer: Any, staging: Path) -> None:
        shutil.rmtree(staging, ignore_errors=True)
        self._require_room(self._expected or self._planned() or _estimate(trainer.model) * self.ranks.size)
        staging.mkdir()

    def _planned(self) -> int:
        """What the plan says of a checkpoint."""
        plan = read_json(self.folder.parent / "plan.json")
        try:
            return int(plan["result"]["disk"]["checkpoint"] * 1e9)
        except (TypeError, KeyError, ValueError):
            return 0

    def _require_room(self, need: int) -> None:
        free = shutil.disk_usage(self.folder).free
        if free < need * MARGIN:
            raise OSError(
                errno.ENOSPC,
                _("not enough room: a checkpoint takes {need}, {free} are free").format(
                    need=gigabytes(need), free=gigabytes(free)
                ),
            )

    def _take(self, trainer: Any, capture: Capture, parts: list[Any], final: Path) -> None:
        """The parts of the trainer's own `_save_checkpoint`, without its barrier, rotation and folder names."""
        folder = str(capture.folder)
        if capture.host is not None:
            capture.host.begin()
        with capture.watching():
            exporting.export(trainer, folder, only_adapter=True)
            if exporting.is_sharded(trainer):
                self._take_shards(trainer, capture, parts)
            else:
                trainer._save_optimizer_and_scheduler(folder)
            trainer._save_scaler(folder)
            trainer._save_rng_state(folder)
        state = trainer.state
        if best := state.best_global_step:
            path = self.folder / f"checkpoint-{best}"
            if path == final or path.is_dir():
                state.best_model_checkpoint = str(path)
        if trainer.args.should_save:
            for callback in [*trainer.callback_handler.callbacks, trainer.control]:
                if isinstance(callback, ExportableState):
                    state.stateful_callbacks[type(callback).__name__] = callback.state()
            state.save_to_json(str(capture.folder / TRAINER_STATE_NAME))

    def _take_shards(self, trainer: Any, capture: Capture, parts: list[Any]) -> None:
        from engine.train import sharded

        for folder, state in sharded.of_trainer(trainer):
            planner = self._planners.get(folder)
            if planner is None:
                planner = self._planners[folder] = sharded.Planner(folder, self.ranks.gather, self.ranks.rank.index)
            parts.append(planner.add(capture, state))
        if trainer.args.should_save:
            torch.save(trainer.lr_scheduler.state_dict(), str(capture.folder / SCHEDULER_NAME))


def _estimate(model: Any) -> int:
    """Bytes of this rank's part of the first checkpoint: the trained weights (all, without an adapter), two moments."""
    adapter = hasattr(model, "peft_config")
    weights = moments = 0
    for parameter in model.parameters():
        own = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        count = int(getattr(parameter, "ds_numel", 0)) or own.numel()
        if parameter.requires_grad or not adapter:
            weights += count * own.element_size()
        if parameter.requires_grad:
            moments += 8 * count
    return weights + moments


class SealedSaving:
    """Mixin for a trainer, before it in the bases: every save of the loop goes through `saver`."""

    saver: Saver

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train; a save that is being written when the training ends, however it ends, is finished."""
        try:
            result = super().train(*args, **kwargs)  # type: ignore[misc]
        except BaseException:
            self.saver.let_finish()
            raise
        self.saver.wait(self)
        return result

    def _load_best_model(self) -> None:
        self.saver.wait(self)
        super()._load_best_model()  # type: ignore[misc]

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        self.saver.save(self)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: TRL would put a card into the checkpoints' folder at each save."""
