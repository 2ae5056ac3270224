"""The run screen in an app that has nothing else: what it asks of the app is done at once and remembered."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from textual.app import App

from engine.errors import FtuiError
from engine.workspace import RunFolder
from tui import themes
from tui.screens.run import RunScreen
from tui.sources.run_listing import Price


class RunApp(App[None]):
    """Shows one run. `asked`, `copied` and `said` keep what the screen wanted from the app."""

    ENABLE_COMMAND_PALETTE = False

    def __init__(
        self,
        run: RunFolder,
        *,
        theme: str = themes.DARK,
        refresh_hz: float = 20.0,
        price: Price | None = None,
        ascii_only: bool = False,
    ) -> None:
        super().__init__()
        self.folder = run
        self.price = price
        self.ascii_only = ascii_only
        self.settings = SimpleNamespace(refresh_hz=refresh_hz)
        self.asked: list[str] = []
        self.copied: list[str] = []
        self.said: list[str] = []
        for one in themes.THEMES:
            self.register_theme(one)
        self.theme = theme

    def on_mount(self) -> None:
        self.push_screen(RunScreen(self.folder))

    @property
    def run_screen(self) -> RunScreen:
        return next(s for s in self.screen_stack if isinstance(s, RunScreen))

    def confirm(self, text: str, callback: Callable[[], Any]) -> None:
        self.asked.append(text)
        callback()

    def background(
        self,
        task: Callable[[], Any],
        done: Callable[[Any], Any] | None = None,
        *,
        failed: Callable[[FtuiError], Any] | None = None,
        busy: str | None = None,
    ) -> None:
        try:
            result = task()
        except FtuiError as error:
            assert failed is not None
            failed(error)
        else:
            if done is not None:
                done(result)

    def copy(self, text: str) -> None:
        self.copied.append(text)

    def notify(self, message: str, **options: Any) -> None:  # type: ignore[override]
        self.said.append(message)
        super().notify(message, **options)
