"""One line of text: a recipe to open, a file to write; known answers below it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.suggester import Suggester
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from tui.keys import bindings
from tui.modals.base import Modal
from tui.widgets.key_bar import KeyBar


class Ask(Modal[str | None]):
    """Dismissed with the text, or None.

    Args:
        title: what is asked for.
        value: what stands there first.
        known: answers to choose from with the arrows.
        suggester: completes what is typed.
    """

    BINDINGS: ClassVar = bindings("ask")
    AUTO_FOCUS = "Input"

    def __init__(
        self, title: str, value: str = "", known: Sequence[str] = (), suggester: Suggester | None = None
    ) -> None:
        super().__init__()
        self._title, self._value, self._known, self._suggester = title, value, list(known), suggester

    def compose(self) -> ComposeResult:
        """The line, the known answers."""
        panel = Vertical(classes="panel")
        panel.border_title = self._title
        with panel:
            box = Input(self._value, compact=True, suggester=self._suggester)
            box.cursor_blink = False
            yield box
            if self._known:
                options = OptionList(*(Option(name) for name in self._known))
                options.can_focus = False
                yield options
            yield KeyBar("ask")

    @on(OptionList.OptionSelected)
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._known[event.option_index])

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Without known answers there is nothing to go through."""
        return bool(self._known) or None if action == "step" else True

    def action_step(self, by: int) -> None:
        """Another of the known answers."""
        if not self._known:
            return
        box = self.query_one(Input)
        index = self._known.index(box.value) + by if box.value in self._known else (0 if by > 0 else -1)
        box.value = self._known[index % len(self._known)]
        box.cursor_position = len(box.value)
        self.query_one(OptionList).highlighted = index % len(self._known)

    @on(Input.Submitted)
    def action_accept(self) -> None:
        """Take what stands there."""
        self.dismiss(self.query_one(Input).value.strip() or None)

    def action_cancel(self) -> None:
        """None."""
        self.dismiss(None)
