"""The app opened on one run, with settings given by the test."""

from __future__ import annotations

import dataclasses
from typing import Any

from engine.workspace import RunFolder, Workspace
from tests.support.app import until
from tui import themes
from tui.app import FtuiApp
from tui.screens.run import RunScreen
from tui.widgets.run_facts import RunHeader


class RunApp(FtuiApp):
    """Shows one run at once; `said` and `copied` keep what the screen told the user."""

    def __init__(
        self,
        run: RunFolder,
        *,
        theme: str = themes.DARK,
        refresh_hz: float = 20.0,
        price: float | None = None,
        ascii_only: bool = False,
    ) -> None:
        super().__init__(Workspace(run.path.parents[1]), open_run=run.name)
        self.settings = dataclasses.replace(self.settings, refresh_hz=refresh_hz, price=price)
        self.ascii_only = ascii_only
        self.theme = theme
        self.said: list[str] = []
        self.copied: list[str] = []

    @property
    def run_screen(self) -> RunScreen:
        """The run's screen, also when something is above it."""
        return next(screen for screen in self.screen_stack if isinstance(screen, RunScreen))

    def copy(self, text: str, what: str) -> None:
        self.copied.append(text)
        super().copy(text, what)

    def notify(self, message: str, **options: Any) -> None:  # type: ignore[override]
        self.said.append(message)
        super().notify(message, **options)


def shown(app: RunApp) -> bool:
    """Whether the run was read and drawn."""
    return bool(app.screen_stack) and any(app.run_screen.query(RunHeader)) and app.run_screen.snapshot.revision > 0


def text(app: RunApp, kind: type[Any]) -> str:
    """What a widget of the run screen shows."""
    return "\n".join(app.run_screen.query_one(kind).lines())


async def ready(app: RunApp, pilot: Any) -> None:
    """Wait until the run is on the screen."""
    await until(lambda: shown(app), pilot)
    await pilot.pause(0.05)
