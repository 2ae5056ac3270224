"""Some lines to read: findings, a comparison, what a removal would do; with a question where one is asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Static

from tui.keys import bindings
from tui.modals.base import Modal
from tui.widgets.key_bar import KeyBar


class Report(Modal[bool]):
    """Dismissed with True on yes, where `ask` is set; else with False."""

    BINDINGS: ClassVar = [*bindings("report"), *bindings("scroll")]

    def __init__(self, title: str, lines: Sequence[str], *, ask: bool = False) -> None:
        super().__init__()
        self.title_text = title
        self.lines = list(lines)
        self.ask = ask

    def compose(self) -> ComposeResult:
        """The title, the lines, the keys."""
        with Vertical(classes="panel"):
            yield Static(self.title_text, markup=False, id="title")
            with VerticalScroll(can_focus=False):
                yield Static(Text("\n".join(self.lines), no_wrap=True, overflow="ellipsis"), id="text")
            yield KeyBar("report")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Without a question there is nothing to say yes to."""
        return self.ask or None if action == "yes" else True

    def action_yes(self) -> None:
        """Yes."""
        self.dismiss(True)

    def action_close(self) -> None:
        """No, or read."""
        self.dismiss(False)

    def action_scroll(self, by: int) -> None:
        """Scroll by some lines."""
        self.query_one(VerticalScroll).scroll_relative(y=by, animate=False)
