"""A message that must be read: an error with its place and its fix, or a longer text."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Static

from engine.errors import FtuiError
from engine.text import _
from tui.keys import bindings
from tui.modals.base import Modal
from tui.widgets.key_bar import KeyBar

if TYPE_CHECKING:
    from tui.app import FtuiApp


class Detail(Modal[None]):
    """One error in full; `y` copies it."""

    BINDINGS: ClassVar = [*bindings("detail"), *bindings("scroll")]

    def __init__(self, error: FtuiError) -> None:
        super().__init__()
        self.error = error

    def compose(self) -> ComposeResult:
        """What, where, fix."""
        ftui = cast("FtuiApp", self.app)
        text = Text(self.error.what, style=ftui.rich_color("error"))
        for label, value in ((_("at"), self.error.where), (_("fix"), self.error.fix)):
            if value:
                text.append(f"\n\n{label}  ", ftui.rich_color("muted")).append(value, ftui.rich_color("foreground"))
        panel = Vertical(classes="panel")
        panel.border_title = _("error")
        with panel:
            with VerticalScroll(can_focus=False):
                yield Static(text, id="text")
            yield KeyBar("detail")

    def action_copy(self) -> None:
        """Copy all of it."""
        parts = (self.error.what, self.error.where, self.error.fix)
        cast("FtuiApp", self.app).copy("\n".join(part for part in parts if part), _("the error"))

    def action_close(self) -> None:
        """Close."""
        self.dismiss(None)

    def action_scroll(self, by: int) -> None:
        """Scroll by some lines."""
        self.query_one(VerticalScroll).scroll_relative(y=by, animate=False)
