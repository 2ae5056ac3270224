"""The last line of a screen: its keys, made from the key tables; a click does what the key does."""

from __future__ import annotations

from typing import ClassVar

from rich.cells import cell_len
from rich.text import Text
from textual import events
from textual.app import RenderResult
from textual.widget import Widget

from tui.keys import TABLES, Key

GAP = 2


class KeyBar(Widget):
    """The keys of some tables on one line; where it is too narrow, a table's last keys give way (`?` lists all)."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"key-bar--key", "key-bar--label"}
    DEFAULT_CSS = """
    KeyBar { dock: bottom; height: 1; background: $background; }
    KeyBar .key-bar--key { color: $accent; text-style: bold; }
    KeyBar .key-bar--label { color: $muted; }
    """

    def __init__(self, *tables: str) -> None:
        super().__init__()
        self._tables = [[key for key in TABLES[table] if key.show] for table in tables]

    def _fitting(self) -> list[Key]:
        tables = [[key for key in table if self._possible(key)] for table in self._tables]
        while True:
            keys = [key for table in tables for key in table]
            if len(keys) <= 1 or sum(_width(key) for key in keys) <= self.size.width:
                return keys
            # A screen's own keys give way first, but two of them are worth more than how to quit.
            least = next((table for table in tables if len(table) > 2), None) or next(t for t in reversed(tables) if t)
            least.pop()

    def _possible(self, key: Key) -> bool:
        """Whether the action can be done now, as its screen or the app says (`check_action`)."""
        action = key.action.partition("(")[0]
        owner = self.screen if hasattr(self.screen, f"action_{action}") else self.app
        return owner.check_action(action, ()) is True

    def on_mount(self) -> None:
        """Draw again when what can be done has changed."""
        self.screen.bindings_updated_signal.subscribe(self, lambda _screen: self.refresh())

    def render(self) -> RenderResult:
        """Key, label, key, label, …"""
        key_style = self.get_component_rich_style("key-bar--key", partial=True)
        label_style = self.get_component_rich_style("key-bar--label", partial=True)
        text = Text(no_wrap=True)
        for key in self._fitting():
            text.append(f" {key.face}", key_style).append(f" {key.text}" + " " * (GAP - 1), label_style)
        return text

    def on_click(self, event: events.Click) -> None:
        """Press the key that was clicked."""
        end = 0
        for key in self._fitting():
            end += _width(key)
            if event.x < end:
                self.app.simulate_key(key.first)
                return


def _width(key: Key) -> int:
    return cell_len(key.face) + cell_len(key.text) + 1 + GAP
