"""Opening the terminal app from a command: inside tmux where that is possible."""

from __future__ import annotations

import sys

from engine.errors import UsageError
from engine.text import _
from engine.workspace import Workspace


def interactive() -> bool:
    """Whether a person sits at both ends."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def open_app(workspace: Workspace, *, run: str | None = None, no_tmux: bool = False) -> int:
    """Open the app (on `run` when given) and return its exit code.

    Raises:
        UsageError: there is no terminal to draw on.
    """
    if not interactive():
        raise UsageError(
            _("the terminal app needs a terminal"),
            fix=_("use `ftui runs`, `ftui status RUN` or `ftui watch RUN` here"),
            kind="no_terminal",
        )
    workspace.prepare()
    if not no_tmux:
        from tui import tmux

        code = tmux.show([] if run is None else ["watch", run], workspace)
        if code is not None:
            if code == 0:
                _part(workspace, session_stays=tmux.is_open(workspace))
            return code
    from tui import app

    return app.run(workspace, open_run=run)


def _part(workspace: Workspace, *, session_stays: bool) -> None:
    from engine.run import status
    from tui.farewell import farewell

    live = [row["name"] for row in status.listing(workspace) if row["state"] in status.LIVE]
    if text := farewell(live, session_stays=session_stays):
        print(text)  # noqa: T201 - tmux has left the screen, this is the shell's again
