"""All keys, made from the key tables and searched by typing."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, cast

from rich.cells import cell_len
from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Input, Static

from engine.text import _
from tui.glossary import FIGURES
from tui.keys import TABLES, TITLES, bindings
from tui.modals.base import Modal
from tui.widgets.key_bar import KeyBar

if TYPE_CHECKING:
    from tui.app import FtuiApp

WIDTH = 72  # of the panel, as modals.tcss says
EDGES = 9  # its border, padding and scrollbar, and the indent
NAME_WIDTH = 16


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

    def _sections(self) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
        """Each part's heading and its rows: a sign or a name, what it means, other words that find it."""
        for table in self._tables:
            yield _(TITLES[table]), [(key.signs, key.help, key.text) for key in TABLES[table]]
            if table == "run":
                yield _("figures"), [(_(name), _(meaning), "") for name, meaning in FIGURES]
        yield _("in tmux"), [("ctrl+b d", _("leave, everything goes on; `ftui` comes back"), "")]

    def _show(self, wanted: str) -> None:
        color = cast("FtuiApp", self.app).rich_color
        room = max(20, min(WIDTH, self.app.size.width) - EDGES - NAME_WIDTH)
        text = Text()
        for title, rows in self._sections():
            found = [row for row in rows if wanted in " ".join(row).lower()]
            if not found:
                continue
            text.append(("\n" if text else "") + title + "\n", color("muted"))
            for name, meaning, _words in found:
                first, *others = textwrap.wrap(meaning, room)
                text.append("  " + name + " " * max(1, NAME_WIDTH - cell_len(name)), color("accent")).append(
                    first + "\n"
                )
                for line in others:
                    text.append(" " * (NAME_WIDTH + 2) + line + "\n")
        if not text:
            text.append(_("no key does that; the command palette (ctrl+p) knows every command"))
        self.query_one("#keys", Static).update(text)

    def action_close(self) -> None:
        """Close."""
        self.dismiss(None)

    def action_scroll(self, by: int) -> None:
        """Scroll by some lines."""
        self.query_one(VerticalScroll).scroll_relative(y=by, animate=False)
