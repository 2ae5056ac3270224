"""The hand-off card: what to copy where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, cast

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Static

from tui.keys import bindings
from tui.modals.base import Modal
from tui.widgets.key_bar import KeyBar

if TYPE_CHECKING:
    from tui.app import FtuiApp

ENTRIES = 4


class Card(Modal[None]):
    """Shows (heading, text) pairs; the number of one copies it."""

    BINDINGS: ClassVar = [
        *(b for b in [*bindings("card"), *bindings("scroll")] if isinstance(b, Binding) and b.action != "copy"),
        *(Binding(str(n), f"copy({n})", show=False, id=f"card.copy_{n}") for n in range(1, ENTRIES + 1)),
    ]

    def __init__(self, title: str, entries: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self.title_text = title
        self.entries = list(entries)

    def compose(self) -> ComposeResult:
        """The entries, the keys."""
        ftui = cast("FtuiApp", self.app)
        accent, muted = ftui.rich_color("accent"), ftui.rich_color("muted")
        text = Text()
        for number, (heading, content) in enumerate(self.entries, 1):
            text.append(f"{number}  ", f"bold {accent}").append(f"{heading}\n", muted)
            text.append(content.rstrip() + ("\n\n" if number < len(self.entries) else ""))
        panel = Vertical(classes="panel")
        panel.border_title = self.title_text
        with panel:
            with VerticalScroll(can_focus=False):
                yield Static(text, id="text")
            yield KeyBar("card")

    def action_copy(self, number: int = 1) -> None:
        """Copy one entry."""
        if 1 <= number <= len(self.entries):
            heading, content = self.entries[number - 1]
            cast("FtuiApp", self.app).copy(content, heading)

    def action_close(self) -> None:
        """Close."""
        self.dismiss(None)

    def action_scroll(self, by: int) -> None:
        """Scroll by some lines."""
        self.query_one(VerticalScroll).scroll_relative(y=by, animate=False)
