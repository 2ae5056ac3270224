"""What the run screen knows about a run at one moment: frozen, so that widgets only draw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tui.state.series import EMPTY, SeriesView

LIVE = frozenset({"queued", "starting", "running", "saving"})
RESUMABLE = frozenset({"stopped", "failed", "lost"})


def figure(value: Any) -> float | None:
    """A number as float, None for everything else (also for true and false)."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


@dataclass(frozen=True)
class Gpu:
    """One GPU as its last sample tells it; None where the device does not say."""

    index: int
    name: str = ""
    lost: bool = False
    memory_used: float | None = None
    memory_total: float | None = None
    utilization: float | None = None
    temperature: float | None = None
    power: float | None = None
    ecc_errors: float | None = None
    xid: float | None = None

    @classmethod
    def from_sample(cls, sample: Mapping[str, Any], position: int) -> Gpu:
        """From one element of `gpus` of a line of hardware.jsonl."""
        index = figure(sample.get("index"))
        return cls(
            index=position if index is None else int(index),
            name=str(sample.get("name") or ""),
            lost=sample.get("state") == "lost",
            memory_used=figure(sample.get("memory_used")),
            memory_total=figure(sample.get("memory_total")),
            utilization=figure(sample.get("utilization")),
            temperature=figure(sample.get("temperature")),
            power=figure(sample.get("power")),
            ecc_errors=figure(sample.get("ecc_errors")),
            xid=figure(sample.get("xid")),
        )


@dataclass(frozen=True)
class Host:
    """Memory, processor and disk of the server."""

    memory_used: float | None = None
    memory_total: float | None = None
    memory_ranks: float | None = None
    cpu: float | None = None
    disk_free: float | None = None
    disk_total: float | None = None
    disk_path: str = ""

    @classmethod
    def from_sample(cls, sample: Mapping[str, Any]) -> Host:
        """From a line of hardware.jsonl."""
        host, disk = sample.get("host"), sample.get("disk")
        host = host if isinstance(host, Mapping) else {}
        disk = disk if isinstance(disk, Mapping) else {}
        return cls(
            memory_used=figure(host.get("memory_used")),
            memory_total=figure(host.get("memory_total")),
            memory_ranks=figure(host.get("memory_ranks")),
            cpu=figure(host.get("cpu")),
            disk_free=figure(disk.get("free")),
            disk_total=figure(disk.get("total")),
            disk_path=str(disk.get("path") or ""),
        )


@dataclass(frozen=True)
class Numbers:
    """The newest figures; None where none was reported. A loss that is not finite is NaN."""

    loss: float | None = None
    eval_loss: float | None = None
    best_eval: float | None = None
    best_eval_step: float | None = None
    learning_rate: float | None = None
    grad_norm: float | None = None
    epoch: float | None = None
    tokens_per_s: float | None = None
    step_time_s: float | None = None
    mfu: float | None = None


@dataclass(frozen=True)
class Plan:
    """What the run was predicted to take, to stand beside what it takes."""

    memory: float | None = None
    """Bytes that the driver will show on each GPU; on the processor the resident memory of the run."""
    tokens_per_s: float | None = None
    seconds: float | None = None
    corrected_by: str = ""

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Plan:
        """From plan.json."""
        result = document.get("result")
        result = result if isinstance(result, Mapping) else {}
        parts = (result.get("per_gpu"), result.get("time"), result.get("corrected_by"))
        memory, time, correction = (part if isinstance(part, Mapping) else {} for part in parts)
        device, hours = figure(memory.get("device_gb")), figure(time.get("hours"))
        rate, share = figure(time.get("tokens_per_s_total")), figure(document.get("useful_share"))
        return cls(
            memory=None if device is None else device * 1e9,
            tokens_per_s=None if rate is None or share is None else rate * share,  # the trainer counts no padding
            seconds=None if hours is None else hours * 3600,
            corrected_by=str(correction.get("run") or ""),
        )


@dataclass(frozen=True)
class Problem:
    """Why a run failed and what to do about it."""

    message: str
    where: str = ""
    fix: str = ""


@dataclass(frozen=True)
class FixLine:
    """One fix of a post-mortem: what it does, its command, and whether a key can do it."""

    text: str
    command: str = ""
    applicable: bool = False


@dataclass(frozen=True)
class PostMortem:
    """Why a run ended: its cause, where in the run, the line that shows it, and what to do."""

    title: str
    where: str = ""
    seen: str = ""
    fixes: tuple[FixLine, ...] = ()


@dataclass(frozen=True, eq=False)
class RunSnapshot:
    """Everything the run screen shows. Equal revisions mean that nothing changed."""

    revision: int = 0
    name: str = ""
    state: str = "queued"
    phase: str = ""
    step: int = 0
    max_steps: int | None = None
    attempt: int = 1
    restarts: int = 0
    device: str = ""
    world_size: int = 1
    numbers: Numbers = field(default_factory=Numbers)
    train: SeriesView = EMPTY
    evaluation: SeriesView = EMPTY
    gpus: tuple[Gpu, ...] = ()
    host: Host | None = None
    events: tuple[Mapping[str, Any], ...] = ()
    problem: Problem | None = None
    post_mortem: PostMortem | None = None
    plan: Plan | None = None
    eta_s: float | None = None
    elapsed_s: float | None = None
    safe_step: int | None = None
    at_risk_steps: int | None = None
    at_risk_seconds: float | None = None
    loading: float | None = None

    @property
    def live(self) -> bool:
        """Whether a supervisor works on the run."""
        return self.state in LIVE

    @property
    def resumable(self) -> bool:
        """Whether it has ended before its end, with something to go on from."""
        return self.state in RESUMABLE and self.safe_step is not None
