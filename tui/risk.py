"""What would be lost if a run died now, in one sentence that is the same on every screen and in `ftui status`."""

from __future__ import annotations

from engine.text import _, duration, ngettext, number


def sentences(saved_step: int | None, steps: int, seconds: float | None) -> list[str]:
    """The sentence, from its longest wording to its shortest.

    Args:
        saved_step: the step of the newest sealed checkpoint; None: there is none.
        steps: the steps since then.
        seconds: how long they took; None: not known.
    """
    short = ngettext("{n} step at risk", "{n} steps at risk", steps).format(n=number(steps))
    middle = short
    if seconds is not None and seconds >= 1:
        text = ngettext("{n} step ({time}) at risk", "{n} steps ({time}) at risk", steps)
        middle = text.format(n=number(steps), time=duration(seconds))
    if saved_step is None:
        return [_("nothing saved yet · {risk}").format(risk=middle), middle, short]
    return [_("saved at step {step} · {risk}").format(step=number(saved_step), risk=middle), middle, short]
