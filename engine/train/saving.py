"""The trainer's side of a save: written to a staging folder by all ranks, sealed by rank 0, or given up by all.

A failed save (disk full on any rank) costs the run nothing but that checkpoint. The trainer's own way would end
the training, leave half a folder that its resume takes for a checkpoint, and rotate old ones away by name.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import ExportableState

from engine.checkpoint import manifest, retention
from engine.text import _, gigabytes
from engine.train.events import Events
from engine.train.ranks import Ranks

FULL_BELOW = 16 * 1024 * 1024  # with less room than this left, an unclear error while writing is a full disk
MARGIN = 1.05


class Saver:
    """Makes sealed checkpoints of one trainer. `meta` are the manifest's fields that stay the same."""

    def __init__(self, folder: Path, ranks: Ranks, events: Events, *, limit: int | None, meta: dict[str, Any]) -> None:
        self.folder = folder
        self.ranks = ranks
        self.events = events
        self.limit = limit
        self.meta = meta
        self.metrics: dict[str, Any] = {}  # the newest of each, for the manifest
        self.saved_step: int | None = None
        self._expected = 0

    def save(self, trainer: Any, model: Any) -> None:
        """Save the trainer's state at its current step; a failure is journaled and the training goes on."""
        step = int(trainer.state.global_step)
        if self.saved_step == step:
            return
        began = time.monotonic()
        self.events.append("save_begin", step=step)
        staging = self.folder / f".staging-{step}"
        final = self.folder / f"checkpoint-{step}"
        best_before = trainer.state.best_model_checkpoint
        trainer.store_flos()
        reason = (
            self._together(lambda: self._prepare(trainer, staging), first_only=True)
            or self._together(lambda: self._write(trainer, staging, final))
            or self._together(lambda: self._seal(trainer, staging, final), first_only=True)
        )
        if reason:
            trainer.state.best_model_checkpoint = best_before
            if self.ranks.first:
                shutil.rmtree(staging, ignore_errors=True)
            self.events.append("save_failed", step=step, reason=reason)
            return
        self.saved_step = step
        self.events.append(
            "save",
            step=step,
            path=f"{self.folder.name}/{final.name}",
            seconds=round(time.monotonic() - began, 3),
            bytes=self._expected,
        )
        self.events.sync()
        if self.ranks.first:
            self._retire(trainer.state.best_model_checkpoint)

    def _together(self, work: Callable[[], None], *, first_only: bool = False) -> str | None:
        """Do a part of the save; why it failed on any rank, for all ranks, or None."""
        reason = None
        if self.ranks.first or not first_only:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - whatever it was, the other ranks must hear of it
                reason = self._reason(error)
        return next((told for told in self.ranks.gather(reason) if told), None)

    def _reason(self, error: Exception) -> str:
        if isinstance(error, OSError) and error.strerror:
            return error.strerror
        try:
            if shutil.disk_usage(self.folder).free < FULL_BELOW:
                return _("the disk is full")  # torch and safetensors do not say so
        except OSError:
            pass
        lines = str(error).strip().splitlines()
        return lines[0][:300] if lines else type(error).__name__

    def _prepare(self, trainer: Any, staging: Path) -> None:
        shutil.rmtree(staging, ignore_errors=True)
        need = self._expected or _estimate(trainer.model)
        free = shutil.disk_usage(self.folder).free
        if free < need * MARGIN:
            raise RuntimeError(
                _("not enough room: a checkpoint takes {need}, {free} are free").format(
                    need=gigabytes(need), free=gigabytes(free)
                )
            )
        staging.mkdir()

    def _write(self, trainer: Any, staging: Path, final: Path) -> None:
        """The parts of the trainer's own `_save_checkpoint`, without its barrier, rotation and folder names."""
        folder = str(staging)
        trainer.save_model(folder, _internal_call=True)
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
            state.save_to_json(str(staging / TRAINER_STATE_NAME))

    def _seal(self, trainer: Any, staging: Path, final: Path) -> None:
        metrics = {**self.metrics, "epoch": trainer.state.epoch}
        sealed = manifest.seal(staging, final, {**self.meta, "step": trainer.state.global_step, "metrics": metrics})
        self._expected = sealed.bytes

    def _retire(self, best: str | None) -> None:
        try:
            kept = retention.protected(self.folder.parent / "backup")
            retention.retire(self.folder, self.limit, best=best, keep=kept)
        except OSError as error:
            print(f"retention: {error}", flush=True)  # noqa: T201 - the rank's log


def _estimate(model: Any) -> int:
    """Bytes of the first checkpoint: the trained weights (all, without an adapter) and two fp32 moments of each."""
    adapter = hasattr(model, "peft_config")
    weights = moments = 0
    for parameter in model.parameters():
        if parameter.requires_grad or not adapter:
            weights += parameter.numel() * parameter.element_size()
        if parameter.requires_grad:
            moments += 8 * parameter.numel()
    return weights + moments


class SealedSaving:
    """Mixin for a trainer, before it in the bases: every save of the loop goes through `saver`."""

    saver: Saver

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        self.saver.save(self, model)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: TRL would put a card into the checkpoints' folder at each save."""
