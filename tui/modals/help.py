"""All keys, made from the key tables and searched by typing."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from rich.cells import cell_len
from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Input, Static

from engine.text import _
from tui.keys import TABLES, TITLES, bindings
from tui.modals.base import Modal
from tui.widgets.key_bar import KeyBar

if TYPE_CHECKING:
    from tui.app import FtuiApp

KEY_WIDTH = 20


class Help(Modal[None]):
    """The help for one screen: its own table stands first."""

    BINDINGS: ClassVar = [*bindings("help"), *bindings("scroll")]
    AUTO_FOCUS = "Input"

    def __init__(self, first: str | None = None) -> None:
        super().__init__()
        self._tables = sorted(TITLES, key=lambda table: table != first)

    def compose(self) -> ComposeResult:
        """Search field, keys."""
        panel = Vertical(classes="panel")
        panel.border_title = _("keys")
        with panel:
            search = Input(placeholder=_("type to search"), compact=True)
            search.cursor_blink = False
            yield search
            with VerticalScroll(can_focus=False):
                yield Static(id="keys")
            yield KeyBar("help")

    def on_mount(self) -> None:
        """Show all."""
        self._show("")

    @on(Input.Changed)
    def _search(self, event: Input.Changed) -> None:
        self._show(event.value.strip().lower())

    def _show(self, wanted: str) -> None:
        ftui = cast("FtuiApp", self.app)
        text = Text()
        for table in self._tables:
            found = [key for key in TABLES[table] if wanted in f"{key.signs} {key.text}".lower()]
            if not found:
                continue
            text.append(_(TITLES[table]) + "\n", ftui.rich_color("muted"))
            for key in found:
                text.append("  " + key.signs + " " * max(1, KEY_WIDTH - cell_len(key.signs)), ftui.rich_color("accent"))
                text.append(key.text + "\n")
            text.append("\n")
        if not text:
            text.append(_("no key does that; the command palette (ctrl+p) knows every command"))
        elif not wanted:
            text.append(_("in tmux") + "\n", ftui.rich_color("muted"))
            text.append("  ctrl+b d" + " " * (KEY_WIDTH - 8), ftui.rich_color("accent"))
            text.append(_("leave, everything goes on; `ftui` comes back"))
        self.query_one("#keys", Static).update(text)

    def action_close(self) -> None:
        """Close."""
        self.dismiss(None)

    def action_scroll(self, by: int) -> None:
        """Scroll by some lines."""
        self.query_one(VerticalScroll).scroll_relative(y=by, animate=False)
