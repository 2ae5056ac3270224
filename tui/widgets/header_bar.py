"""The first line of every screen: what is running, and what would be lost if it ended now."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.style import Style
from rich.text import Text
from textual.app import RenderResult
from textual.widget import Widget

from engine.text import _, ngettext, number
from tui import risk
from tui.sources.lease_source import LeaseLine, candidates
from tui.widgets.run_table import ASCII_SYMBOLS, STYLE_OF_STATE, SYMBOLS, state_word, steps

if TYPE_CHECKING:
    from tui.sources.run_listing import RunRow


class HeaderBar(Widget):
    """One line, drawn again only when its text changed."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "header-bar--name",
        "header-bar--muted",
        "header-bar--accent",
        "header-bar--success",
        "header-bar--warning",
        "header-bar--error",
    }
    DEFAULT_CSS = """
    HeaderBar { dock: top; height: 1; background: $panel; }
    HeaderBar .header-bar--name { color: $accent; text-style: bold; }
    HeaderBar .header-bar--muted { color: $muted; }
    HeaderBar .header-bar--accent { color: $accent; }
    HeaderBar .header-bar--success { color: $success; }
    HeaderBar .header-bar--warning { color: $warning; }
    HeaderBar .header-bar--error { color: $error; }
    """

    def __init__(self, *, ascii_only: bool = False) -> None:
        super().__init__()
        self._rows: tuple[RunRow, ...] | None = None
        self._symbols = ASCII_SYMBOLS if ascii_only else SYMBOLS
        self._said: object = None

    def on_mount(self) -> None:
        """Follow the app's list of runs."""
        if hasattr(self.app, "runs"):
            self.watch(self.app, "runs", self._follow)
            self.watch(self.app, "lease", self._count)

    def _follow(self, rows: tuple[RunRow, ...] | None) -> None:
        if self.app.screen is self.screen or self.app.screen.is_modal:  # not behind another screen: see HomeScreen
            self.show(rows)

    def _count(self, _line: object) -> None:
        if self.app.screen is self.screen or self.app.screen.is_modal:
            self.show(self._rows)

    def show(self, rows: tuple[RunRow, ...] | None) -> None:
        """Take a new list of runs."""
        self._rows = rows
        said = (self._left().markup, [text.markup for text in self._right()])
        if said != self._said:
            self._said = said
            self.refresh()

    def render(self) -> RenderResult:
        """What is running on the left; on the right, where there is room, what is at risk and the lease."""
        left = self._left()
        for right in self._right():
            space = self.size.width - left.cell_len - right.cell_len - 1
            if space >= 2:
                left.append(" " * space).append_text(right)
                break
        left.truncate(self.size.width, overflow="ellipsis")
        return left

    def _left(self) -> Text:
        text = Text(no_wrap=True)
        text.append(" ftui  ", self._style("name"))
        if self._rows is None:
            return text
        live = [row for row in self._rows if row.live]
        if live:
            self._say(text, live[0])
            if live[0].max_steps:
                text.append(f" {steps(live[0])}")
            if len(live) > 1:
                more = ngettext("and {n} more run", "and {n} more runs", len(live) - 1)
                text.append("  " + more.format(n=number(len(live) - 1)), self._style("muted"))
        elif self._rows and self._rows[0].state in ("failed", "lost"):
            self._say(text, self._rows[0])
        else:
            text.append(_("nothing is running"), self._style("muted"))
        return text

    def _say(self, text: Text, row: RunRow) -> None:
        tone = self._style(STYLE_OF_STATE.get(row.state, "muted"))
        text.append(f"{row.name} ").append(f"{self._symbols.get(row.state, '?')} {state_word(row.state)}", tone)

    def _right(self) -> list[Text]:
        """What is at risk and the lease, longest wording first."""
        live = [row for row in self._rows or () if row.live]
        texts, style = at_risk(live[0]) if live and live[0].step else ([], "muted")
        line = getattr(self.app, "lease", None) or LeaseLine()
        found = []
        for risk_text, lease_text in candidates(texts, line):
            text = Text(risk_text, self._style(style))
            if lease_text:
                text = text.append("   " if risk_text else "").append(lease_text, self._style(line.tone))
            found.append(text)
        return found

    def _style(self, name: str) -> Style:
        return self.get_component_rich_style(f"header-bar--{name}", partial=True)


def at_risk(row: RunRow) -> tuple[list[str], str]:
    """What would be lost if the run died now, longest wording first, and the style to say it in."""
    return risk.sentences(
        row.saved_step, row.unsaved_steps, row.unsaved_s
    ), "warning" if row.saved_step is None else "muted"
