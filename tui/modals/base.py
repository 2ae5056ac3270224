"""What every modal shares: its look, its keys, its way out."""

from __future__ import annotations

from typing import ClassVar, TypeVar

from textual.screen import ModalScreen

Result = TypeVar("Result")


class Modal(ModalScreen[Result]):
    """A panel above the screen."""

    CSS_PATH: ClassVar = "modals.tcss"
    DEFAULT_CLASSES = "modal"
    AUTO_FOCUS = ""
