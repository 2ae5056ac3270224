"""The end of a run's log: a pane that is opened when it is wanted."""

from __future__ import annotations

from rich.cells import cell_len
from rich.segment import Segment
from textual.strip import Strip
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
        scrollbar-size: 0 1;
        padding: 0 1;
    }
    RunLog:focus { background-tint: $background 0%; border-top: solid $border; }
    """

    def __init__(self) -> None:
        super().__init__(max_lines=KEPT_LINES)

    def _render_line(self, y: int, scroll_x: int, width: int) -> Strip:
        """A line that goes on at the right says so."""
        width = self.scrollable_content_region.width  # what the scrollbar leaves
        strip = super()._render_line(y, scroll_x, width)
        if y >= len(self.lines) or cell_len(self._process_line(self.lines[y])) <= scroll_x + width:
            return strip
        mark = "~" if getattr(self.app, "ascii_only", False) else "…"
        return Strip.join([strip.crop(0, width - 1), Strip([Segment(mark, self.rich_style)])])

    def scroll_pages(self, by: int) -> None:
        """Back (-1) or on (1), by a little less than what is shown."""
        self.scroll_relative(y=by * max(1, self.scrollable_content_region.height - 1), animate=False)

    def shift(self, by: int) -> None:
        """To the left (-1) or the right (1), by half of the width."""
        self.scroll_relative(x=by * max(1, self.scrollable_content_region.width // 2), animate=False)

    def restart(self, title: str) -> None:
        """Begin with another file."""
        self.clear()
        self.border_title = title
