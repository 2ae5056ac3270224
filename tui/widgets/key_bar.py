"""The last line of a screen: its keys, made from the key tables; a click does what the key does."""

from __future__ import annotations

from typing import ClassVar

from rich.cells import cell_len
from rich.text import Text
from textual import events
from textual.app import RenderResult
from textual.timer import Timer
from textual.widget import Widget

from tui.keys import TABLES, Key

GAP = 2


class KeyBar(Widget):
    """The keys of some tables on one line; where it is too narrow, a table's last keys give way (`?` lists all).

    For some seconds a message may stand in their place.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {"key-bar--key", "key-bar--label", "key-bar--said"}
    DEFAULT_CSS = """
    KeyBar { dock: bottom; height: 1; background: $background; text-wrap: nowrap; text-overflow: ellipsis; }
    KeyBar .key-bar--key { color: $accent; text-style: bold; }
    KeyBar .key-bar--label { color: $muted; }
    KeyBar .key-bar--said { color: $foreground; text-style: bold; }
    """

    def __init__(self, *tables: str) -> None:
        super().__init__()
        self._said = ""
        self._hush: Timer | None = None
        self._tables = [[key for key in TABLES[table] if key.show] for table in tables]

    def say(self, text: str, seconds: float) -> None:
        """Show a message for some seconds, or until the next one."""
        self._said = text
        if self._hush is not None:
            self._hush.stop()
        self._hush = self.set_timer(seconds, self.hush)
        self.refresh()

    def hush(self) -> None:
        """Back to the keys."""
        if self._said:
            self._said = ""
            self.refresh()

    @property
    def said(self) -> str:
        """The message on show."""
        return self._said

    def _fitting(self) -> list[tuple[Key, str]]:
        """Keys with their labels: long ones are said shorter first, then keys are left out."""
        tables = [[(key, key.text) for key in table if self._possible(key)] for table in self._tables]
        for table in tables:
            for index in reversed(range(len(table))):
                if self._fits(tables):
                    break
                key = table[index][0]
                table[index] = (key, key.short_text)
        while True:
            keys = [entry for table in tables for entry in table]
            if len(keys) <= 1 or self._fits(tables):
                return keys
            # A screen's own keys give way first, but two of them are worth more than how to quit.
            least = next((table for table in tables if len(table) > 2), None) or next(t for t in reversed(tables) if t)
            least.pop()

    def _fits(self, tables: list[list[tuple[Key, str]]]) -> bool:
        return sum(_width(*entry) for table in tables for entry in table) <= self.size.width

    def _possible(self, key: Key) -> bool:
        """Whether the action can be done now, as its screen or the app says (`check_action`)."""
        action = key.action.partition("(")[0]
        owner = self.screen if hasattr(self.screen, f"action_{action}") else self.app
        return owner.check_action(action, ()) is True

    def on_mount(self) -> None:
        """Draw again when what can be done has changed."""
        self.screen.bindings_updated_signal.subscribe(self, lambda _screen: self.refresh())

    def render(self) -> RenderResult:
        """Key, label, key, label, …; or what is said."""
        if self._said:
            style = self.get_component_rich_style("key-bar--said", partial=True)
            return Text(f" {self._said}", style, no_wrap=True, overflow="ellipsis")
        key_style = self.get_component_rich_style("key-bar--key", partial=True)
        label_style = self.get_component_rich_style("key-bar--label", partial=True)
        text = Text(no_wrap=True)
        for key, label in self._fitting():
            text.append(f" {key.face}", key_style).append(f" {label}" + " " * (GAP - 1), label_style)
        return text

    def on_click(self, event: events.Click) -> None:
        """Press the key that was clicked; a message goes."""
        if self._said:
            self.hush()
            return
        end = 0
        for key, label in self._fitting():
            end += _width(key, label)
            if event.x < end:
                self.app.simulate_key(key.first)
                return


def _width(key: Key, label: str) -> int:
    return cell_len(key.face) + cell_len(label) + 1 + GAP
