"""The part of a save for which training need not wait: write, agree, seal, retire."""

from __future__ import annotations

import shutil
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.checkpoint import manifest, retention
from engine.text import _
from engine.train import writing
from engine.train.events import Events
from engine.train.staging import Capture
from engine.train.verdict import Verdicts

if TYPE_CHECKING:
    from engine.train.sharded import Part

FULL_BELOW = 16 * 1024 * 1024  # with less room than this left, an unclear error while writing is a full disk


@dataclass
class Order:
    """One rank's part of one save: all that is needed to write it while the model trains on."""

    number: int
    step: int
    staging: Path
    final: Path
    capture: Capture
    parts: list[Part]
    meta: dict[str, Any]  # of the manifest
    best: str | None
    policy: retention.Policy
    patience: float  # seconds after which a rank that has not written its part is given up
    began: float
    told: dict[str, Any] = field(default_factory=dict)  # for the journal: how long training waited


class Commit(threading.Thread):
    """Carries an order out; `reason` says afterwards why the checkpoint was given up, None when it is sealed."""

    def __init__(self, order: Order, verdicts: Verdicts, events: Events) -> None:
        super().__init__(name=f"save-{order.step}", daemon=True)
        self.order = order
        self.verdicts = verdicts
        self.events = events
        self.reason: str | None = None
        self.bytes = 0  # of the sealed checkpoint, on rank 0

    def run(self) -> None:
        order, first = self.order, self.verdicts.ranks.first
        report = self._write()
        self.verdicts.report(order.number, report, failed=report[0] is not None)
        if not first:
            self.reason = self.verdicts.await_verdict(order.number, 2 * order.patience)
            return
        try:
            self.reason = self._seal(report)
        except Exception as error:  # noqa: BLE001 - the other ranks wait for the verdict, whatever it was
            self.reason = reason_of(error, order.staging.parent)
        if self.reason:
            shutil.rmtree(order.staging, ignore_errors=True)
            self.events.append("save_failed", step=order.step, reason=self.reason)
        else:
            self.events.append(
                "save",
                step=order.step,
                path=f"{order.final.parent.name}/{order.final.name}",
                seconds=round(time.monotonic() - order.began, 3),
                bytes=self.bytes,
                **order.told,
            )
        self.verdicts.publish(order.number, self.reason)
        self.events.sync()
        if not self.reason:
            self._retire()

    def _write(self) -> tuple[str | None, dict[str, Any], list[Any]]:
        order = self.order
        try:
            entries = writing.write(order.capture.files, order.staging, lambda: self.verdicts.given_up(order.number))
            return None, entries, [part.results for part in order.parts]
        except Exception as error:  # noqa: BLE001 - whatever it was, the other ranks must hear of it
            return reason_of(error, order.staging.parent), {}, []

    def _seal(self, own: tuple[str | None, dict[str, Any], list[Any]]) -> str | None:
        order = self.order
        reports = self.verdicts.collect(order.number, own, order.patience)
        reasons = [reason for reason, _entries, _results in reports if reason]
        if reasons:  # of a rank that only heard of it, the reason is no news
            return next((reason for reason in reasons if reason != GIVEN_UP), reasons[0])
        known = {name: entry for _reason, entries, _results in reports for name, entry in entries.items()}
        sharded = [part.finish([report[2][i] for report in reports]) for i, part in enumerate(order.parts)]
        known.update(writing.write(sharded, order.staging))
        self.bytes = manifest.seal(order.staging, order.final, order.meta, known).bytes
        return None

    def _retire(self) -> None:
        try:
            retention.retire(self.order.final.parent, self.order.policy, best=self.order.best)
        except OSError as error:
            print(f"retention: {error}", flush=True)  # noqa: T201 - the rank's log


GIVEN_UP = "another rank gave the save up"


def reason_of(error: Exception, folder: Path) -> str:
    """Why a save failed, for people."""
    if isinstance(error, writing.Aborted):
        return GIVEN_UP
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    try:
        if shutil.disk_usage(folder).free < FULL_BELOW:
            return _("the disk is full")  # torch and safetensors do not say so
    except OSError:
        pass
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
