"""The end of a run's log: a pane that is opened when it is wanted."""

from __future__ import annotations

from textual.widgets import Log

KEPT_LINES = 5000


class RunLog(Log):
    """Plain lines that can be scrolled and selected; the file's name stands in its upper edge."""

    DEFAULT_CSS = """
    RunLog {
        background: $background;
        border: none;
        border-top: solid $border-blurred;
        border-title-color: $muted;
        border-title-align: left;
        scrollbar-size: 1 1;
        padding: 0 1;
    }
    RunLog:focus { background-tint: $background 0%; border-top: solid $border; }
    """

    def __init__(self) -> None:
        super().__init__(max_lines=KEPT_LINES)

    def restart(self, title: str) -> None:
        """Begin with another file."""
        self.clear()
        self.border_title = title
