"""What the checkpoint screen knows about a run's checkpoints at one moment: frozen, so that widgets only draw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

LONGEST = 100_000  # saves that a forecast looks ahead


@dataclass(frozen=True)
class Extra:
    """A cell of a column that another part adds (a backup's state): its text and how loud it is."""

    text: str
    tone: str = ""  # "", "good", "warning", "error", "muted"


@dataclass(frozen=True)
class CheckpointRow:
    """One checkpoint as the table shows it. `extra` maps the titles of added columns to their cells."""

    step: int
    name: str
    path: str
    state: str  # sealed, partial, not_exact, damaged, writing, leftover, foreign
    resumable: bool = False
    loss: float | None = None
    eval_loss: float | None = None
    bytes: int = 0
    time: float | None = None
    attempt: int = 0
    pinned: bool = False
    best: bool = False
    newest: bool = False
    goes: bool = False
    reason: str = ""
    problem: str = ""
    drilled: bool | None = None  # whether the newest drill from it passed; None: there was none
    extra: Mapping[str, Extra] = field(default_factory=dict)


@dataclass(frozen=True)
class BackupView:
    """What is said above the table; a line that is empty is not drawn."""

    loss: str = ""  # what would be lost if the server vanished now
    loss_tone: str = ""
    upload: str = ""
    upload_tone: str = "muted"


@dataclass(frozen=True)
class Forecast:
    """When the disk will be full; `step` None: not before the run's end."""

    step: int | None
    seconds: float | None = None


@dataclass(frozen=True)
class CheckpointsSnapshot:
    """Everything the checkpoint screen shows; `rows` newest first."""

    run: str = ""
    state: str = ""
    live: bool = False
    step: int = 0
    max_steps: int | None = None
    safe_step: int | None = None
    at_risk_steps: int = 0
    at_risk_seconds: float | None = None
    rows: tuple[CheckpointRow, ...] = ()
    columns: tuple[str, ...] = ()
    disk_path: str = ""
    disk_free: float | None = None
    disk_total: float | None = None
    forecast: Forecast | None = None
    problem: str = ""
    read: bool = False
    backup: BackupView = BackupView()
    lease: tuple[str, str] = ("", "muted")  # the strip's words and tone


def forecast(
    *,
    free: float,
    size: float,
    step: int,
    max_steps: int,
    every: int,
    kept: int,
    limit: int | None,
    keep_every: int | None = None,
    step_s: float | None = None,
) -> Forecast:
    """At which save the disk will be full.

    A save needs its whole size before an old checkpoint goes; after that the rules let one go for each new one, once
    there are as many as they keep.

    Args:
        free: bytes that are free now.
        size: of a checkpoint.
        step: where the run is.
        max_steps: its last step.
        every: steps from one save to the next.
        kept: checkpoints that are there now.
        limit: how many of the newest the rules keep; None: all.
        keep_every: each checkpoint of a multiple of this stays for good.
        step_s: seconds a step takes; None: not known.
    """
    save = (step // every + 1) * every
    for _number in range(LONGEST):
        if save > max_steps and save - every >= max_steps:
            break
        at = min(save, max_steps)
        if free < size:
            return Forecast(at, None if step_s is None else (at - step) * step_s)
        free -= size
        kept += 1
        if limit is not None and kept > limit:
            kept -= 1
            if not (keep_every and (at - limit * every) % keep_every == 0):  # the one that leaves the newest ones
                free += size
        save += every
    return Forecast(None)
