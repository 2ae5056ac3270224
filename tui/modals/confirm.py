"""One question, yes or no."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Static

from tui.keys import bindings
from tui.modals.base import Modal
from tui.widgets.key_bar import KeyBar


class Confirm(Modal[bool]):
    """Dismissed with the answer."""

    BINDINGS: ClassVar = bindings("confirm")

    def __init__(self, question: str) -> None:
        super().__init__()
        self.question = question

    def compose(self) -> ComposeResult:
        """The question and its keys."""
        with Vertical(classes="panel"):
            yield Static(self.question, markup=False)
            yield KeyBar("confirm")

    def action_answer(self, answer: bool) -> None:
        """Close with an answer."""
        self.dismiss(answer)
