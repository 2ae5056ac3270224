"""What happened to a run, newest first, in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from engine.text import _, clock, gigabytes, ngettext, printable
from tui.state.snapshot import figure
from tui.widgets.cells import Cells, CellWidget, Ink
from tui.widgets.figures import fixed, loss, whole

Event = Mapping[str, Any]
Told = tuple[str, Ink]


class RunEvents(CellWidget):
    """One line an event."""

    DEFAULT_CSS = """
    RunEvents { height: 4; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._events: tuple[Event, ...] = ()

    def show(self, events: tuple[Event, ...]) -> None:
        """Draw these events, newest first."""
        if events != self._events:
            self._events = events
            self.repaint()

    def paint(self, cells: Cells) -> None:
        """Time, then text; the newest line is bright, the others are dim unless they matter."""
        y = 0
        for event in self._events:
            if y >= cells.height:
                break
            told = describe(event)
            if told is None:
                continue
            text, ink = told
            x = cells.put(1, y, clock(figure(event.get("time")) or 0.0), Ink.MUTED) + 1
            if ink is Ink.PLAIN and y > 0:
                ink = Ink.MUTED
            cells.put_text(x, y, text, ink)
            y += 1


def describe(event: Event) -> Told | None:
    """An event in words, and how loud; None for one that tells a reader nothing."""
    teller = _TELLERS.get(str(event.get("event")))
    told = teller(event) if teller else None
    return None if told is None else (printable(" ".join(told[0].split())), told[1])


def _step(event: Event) -> str:
    return whole(figure(event.get("step")))


def _save(event: Event) -> Told:
    text = _("checkpoint {step} sealed").format(step=_step(event))
    if (seconds := figure(event.get("seconds"))) is not None:
        text += " " + _("in {s} s").format(s=fixed(seconds, 1))
    if (size := figure(event.get("bytes"))) is not None:
        text += f" · {gigabytes(size)}"
    return text, Ink.PLAIN


def _save_failed(event: Event) -> Told:
    text = _("checkpoint {step} could not be saved: {reason}")
    return text.format(step=_step(event), reason=event.get("reason") or "?"), Ink.ERROR


def _eval(event: Event) -> Told:
    value, previous = figure(event.get("eval_loss")), figure(event.get("previous"))
    text = _("eval {loss} at step {step}").format(loss=loss(math.nan if value is None else value), step=_step(event))
    if previous is not None and math.isfinite(previous):
        text += " " + _("(was {loss})").format(loss=loss(previous))
    if event.get("best"):
        text += ", " + _("best so far")
    return text, Ink.PLAIN if value is not None else Ink.ERROR


def _launched(event: Event) -> Told:
    gpus = event.get("gpus")
    count = len(gpus) if isinstance(gpus, list) else 0
    on = ngettext("{n} GPU", "{n} GPUs", count).format(n=whole(count)) if count else _("the CPU")
    attempt = figure(event.get("attempt")) or 1
    if attempt > 1:
        return _("attempt {n} started on {on}").format(n=whole(attempt), on=on), Ink.PLAIN
    return _("started on {on}").format(on=on), Ink.PLAIN


def _control(event: Event) -> Told:
    asked = {"save": _("save"), "evaluate": _("evaluate"), "stop": _("stop with save"), "stop_now": _("stop now")}
    do = str(event.get("do"))
    return _("asked to: {what}").format(what=asked.get(do, do)), Ink.PLAIN


def _gpu(event: Event) -> Told:
    what = str(event.get("what"))
    words = {
        "lost": _("GPU {index} no longer answers"),
        "back": _("GPU {index} answers again"),
        "xid": _("GPU {index} reported an Xid error"),
        "ecc": _("GPU {index} reported memory errors"),
    }
    text = words.get(what, "GPU {index}: {what}").format(index=event.get("index"), what=what)
    return text, Ink.GOOD if what == "back" else Ink.ERROR


def _rank_exit(event: Event) -> Told | None:
    code, signal = event.get("code"), event.get("signal")
    if signal:
        return _("a rank was ended by signal {signal}").format(signal=signal), Ink.ERROR
    return (_("a rank ended with code {code}").format(code=code), Ink.ERROR) if code else None


def _restart(event: Event) -> Told:
    resumed = event.get("resumed_from")
    if isinstance(resumed, str) and resumed:
        step = resumed.rstrip("/").rpartition("-")[2]
        return _("restarted from checkpoint {step}").format(step=step), Ink.WARNING
    return _("restarted from the beginning"), Ink.WARNING


def _signal(event: Event) -> Told:
    return _("the supervisor got {name}").format(name=event.get("name") or "?"), Ink.WARNING


def _failed(event: Event) -> Told:
    error = event.get("error")
    message = error.get("message") if isinstance(error, Mapping) else error
    return _("failed: {message}").format(message=message or "?"), Ink.ERROR


def _watched(event: Event) -> Told | None:
    from tui.follow import watched

    text = watched(dict(event))
    good = event.get("event") == "drill" and event.get("passed")
    bad = event.get("event") in ("hang", "given_up") or (event.get("event") == "drill" and not good)
    return None if text is None else (text, Ink.GOOD if good else Ink.ERROR if bad else Ink.WARNING)


_TELLERS: dict[str, Callable[[Event], Told | None]] = {
    "save": _save,
    "save_failed": _save_failed,
    "eval": _eval,
    "created": lambda _event: (_("created"), Ink.PLAIN),
    "launched": _launched,
    "running": lambda _event: (_("training"), Ink.PLAIN),
    "control": _control,
    "signal": _signal,
    "hang": _watched,
    "stacks": _watched,
    "guard": _watched,
    "given_up": _watched,
    "drill": _watched,
    "gpu": _gpu,
    "rank_exit": _rank_exit,
    "restart": _restart,
    "stopped": lambda _event: (_("stopped"), Ink.WARNING),
    "done": lambda _event: (_("done"), Ink.GOOD),
    "failed": _failed,
}
