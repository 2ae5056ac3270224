"""What to say in the shell when the app has left the screen."""

from __future__ import annotations

from collections.abc import Sequence

from engine.text import _, ngettext, number

NAMED = 5


def farewell(live: Sequence[str], *, session_stays: bool = False) -> str | None:
    """Which runs go on, and how to come back; None when there is nothing to come back to.

    Args:
        live: the names of the runs that go on.
        session_stays: the app itself is still open, in tmux.
    """
    runs = ", ".join(live[:NAMED]) + (", …" if len(live) > NAMED else "")
    if session_stays and not live:
        return _("The app stays open in tmux; `ftui` shows it again.")
    if not live:
        return None
    text = ngettext("{runs} goes on; `ftui` shows it again.", "{n} runs go on ({runs}); `ftui` shows them.", len(live))
    return text.format(n=number(len(live)), runs=runs)
