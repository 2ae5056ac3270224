"""The terminal app: screens, keys, palette, themes and errors. What it shows comes from files; it owns nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from textual import work
from textual.reactive import var
from textual.screen import Screen
from textual.worker import WorkerFailed, get_current_worker

from engine import settings
from engine.errors import FtuiError, UsageError
from engine.text import _
from engine.workspace import RunFolder, Workspace
from tui import themes
from tui.farewell import farewell
from tui.keys import bindings
from tui.messages import LeaseChanged, RunsChanged
from tui.ordered_keys import OrderedKeysApp

if TYPE_CHECKING:
    from textual.command import Provider
    from textual.driver import Driver
    from textual.notifications import SeverityLevel

    from tui.sources.lease_source import LeaseLine
    from tui.sources.run_listing import Price, RunRow

T = TypeVar("T")
LISTING_S = 1.0
HANGUP_GRACE_S = 2.0
SAID_S = 3.0


def _home() -> Screen[None]:
    from tui.screens.home import HomeScreen

    return HomeScreen()


def _commands() -> type[Provider]:
    from tui.palette import FtuiCommands

    return FtuiCommands


class FtuiApp(OrderedKeysApp):
    """`ftui`.

    Args:
        workspace: where the runs are.
        open_run: a run to open at once, above the list.
        then: what else to do once it is there.
    """

    TITLE = "ftui"
    CSS_PATH = Path(__file__).parent / "screens" / "home.tcss"  # Textual does not load the default screen's own
    SCREENS: ClassVar = {"home": _home}
    COMMANDS: ClassVar = {_commands}
    BINDINGS: ClassVar = bindings("app")
    AUTO_FOCUS = None

    # Not `reactive`: that would draw the whole screen again. Watchers are called each time: ages and costs go on.
    runs: var[tuple[RunRow, ...] | None] = var(None, always_update=True)
    lease: var[LeaseLine | None] = var(None)

    def __init__(
        self, workspace: Workspace, open_run: str | None = None, then: Callable[[FtuiApp], Any] | None = None
    ) -> None:
        super().__init__()
        self.workspace = workspace
        self.failure: FtuiError | None = None
        self.settings = settings.load()
        self.ascii_only = bool(self.settings.ascii) or os.environ.get("TERM") in ("dumb", "vt100", "vt220")
        self._first = workspace.find(open_run) if open_run else None
        self._then = then
        self._stop_listing = threading.Event()
        for theme in themes.THEMES:
            self.register_theme(theme)
        wanted = themes.choose(self.settings.theme)
        self.theme = wanted if wanted in self.available_themes else themes.DARK

    # Life

    def get_default_screen(self) -> Screen[None]:
        """Home is the bottom of the stack."""
        return _home()

    def get_driver_class(self) -> type[Driver]:
        """A driver that bad input does not end."""
        from tui.driver import FtuiDriver

        return FtuiDriver

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """What our styles use beyond a theme's ordinary colors."""
        return themes.DEFAULTS

    def on_mount(self) -> None:
        """Listen to signals, follow the runs, open what was asked for."""
        self._handle_signals()
        self._follow_runs()
        if self._first is not None:
            self.open_run(self._first)
        if self._then is not None:
            self._then(self)

    def _handle_signals(self) -> None:
        """A dead connection (HUP) or a kill (TERM) ends the app quietly; runs do not notice."""
        if threading.current_thread() is not threading.main_thread():
            return
        loop = asyncio.get_running_loop()
        for number_, code in ((signal.SIGHUP, 129), (signal.SIGTERM, 143)):
            loop.add_signal_handler(number_, self._leave, code)

    def _leave(self, code: int) -> None:
        # Writing to a terminal that is gone can block or fail: nothing is lost by a hard end.
        timer = threading.Timer(HANGUP_GRACE_S, os._exit, (code,))
        timer.daemon = True
        timer.start()
        self.exit(return_code=code)

    def on_unmount(self) -> None:
        """Let the listing thread end."""
        self._stop_listing.set()

    def _handle_exception(self, error: Exception) -> None:
        """Log what nobody expected, end the app, leave one clear line (Textual would print the traceback)."""
        if isinstance(error, WorkerFailed) and isinstance(error.error, Exception):
            error = error.error
        if self.failure is None:
            self.failure = self.as_ours(error)
        self._return_code = 1
        if self._exception is None:  # a test's pilot raises it
            self._exception = error
            self._exception_event.set()
        self._close_messages_no_wait()

    # Runs

    @work(thread=True, group="listing")
    def _follow_runs(self) -> None:
        from tui.sources.lease_source import LeaseSource
        from tui.sources.run_listing import RunListing

        listing, lease, line = RunListing(self.workspace), LeaseSource(self.workspace), None
        worker = get_current_worker()
        before: tuple[RunRow, ...] | None = None
        while not worker.is_cancelled and not self._stop_listing.is_set():
            rows = listing.poll()
            if rows != before or any(row.live for row in rows):  # of a live one also the age and the cost change
                self.post_message(RunsChanged(rows))
                before = rows
            if lease.poll() is not line:
                line = lease.line
                self.post_message(LeaseChanged(line))
            self._stop_listing.wait(LISTING_S)

    def on_runs_changed(self, message: RunsChanged) -> None:
        """The newest list, for whoever watches `runs`."""
        self.runs = message.rows

    def on_lease_changed(self, message: LeaseChanged) -> None:
        """The newest words, for the headers that watch `lease`."""
        self.lease = message.line

    def open_run(self, run: RunFolder) -> None:
        """Show one run."""
        from tui.screens.run import RunScreen

        if isinstance(self.screen, RunScreen):
            self.pop_screen()
        self.push_screen(RunScreen(run))

    def to_users_folder(self) -> None:
        """Go to where the user is now: a session that was joined again still stands where it was started."""
        from tui.tmux import users_folder

        folder = users_folder()
        if folder is not None:
            with contextlib.suppress(OSError):
                os.chdir(folder)

    def open_planner(self, recipe: str | None = None, overrides: Sequence[str] = ()) -> None:
        """Plan a recipe, or the usual one."""
        from tui.screens.planner import PlannerScreen

        if not isinstance(self.screen, PlannerScreen):
            self.to_users_folder()
            self.push_screen(PlannerScreen(recipe, overrides))

    def open_data(
        self,
        names: Sequence[str],
        *,
        model: str | None = None,
        max_length: int | None = None,
        columns: dict[str, str] | None = None,
        then: Callable[[dict[str, Any]], Any] | None = None,
    ) -> None:
        """Look at data; what that suggests for a recipe goes to `then`, or into a planner."""
        from engine.yamledit import scalar
        from tui.screens.data import DataScreen

        def plan(changes: dict[str, Any]) -> None:
            self.open_planner(None, [f"{key}={scalar(value)}" for key, value in changes.items() if value is not None])

        screen = DataScreen(tuple(names), model=model, max_length=max_length, columns=columns)
        self.push_screen(screen, lambda changes: (then or plan)(changes) if changes else None)

    def ask_data(self, value: str = "", **how: Any) -> None:
        """Ask which data to look at, then do."""
        from tui.modals.ask import Ask

        self.to_users_folder()
        ask = Ask(_("look at data: file, folder, hf://owner/name or remote:path"), value)
        self.push_screen(ask, lambda name: self.open_data([name], **how) if name else None)

    def open_data_of(self, run: RunFolder) -> None:
        """Look at the data of a run."""
        from engine.recipe.columns import of

        recipe = run.read_resolved().get("recipe") or {}
        name, length = recipe.get("dataset_path"), recipe.get("max_length")
        if not isinstance(name, str) or not name:
            self.notify(_("the run names no data"), markup=False)
            return
        if name.startswith("builtin:"):
            from engine.recipe import find

            name = str(find("demo").parent / "data" / f"{name.partition(':')[2]}.jsonl")
        model = recipe.get("model_name_or_path")
        self.open_data(
            [name],
            model=model if isinstance(model, str) else None,
            max_length=length if isinstance(length, int) else None,
            columns=of(recipe),
        )

    def open_serve(self, name: str) -> None:
        """Serve a run's result, an adapter or a model."""
        from tui.screens.serve import ServeScreen

        if not isinstance(self.screen, ServeScreen):
            self.push_screen(ServeScreen(name))

    def ask_serve(self) -> None:
        """Ask what to serve, then do."""
        from tui.modals.ask import Ask

        self.to_users_folder()
        known = [row.name for row in self.runs or () if row.state == "done"]
        ask = Ask(_("serve: a run, an adapter's folder or a model's folder"), known[0] if known else "", known)
        self.push_screen(ask, lambda name: self.open_serve(name) if name else None)

    def opened(self, run: RunFolder | None) -> None:
        """Show a run that was just started; None: it was not."""
        if run is not None:
            self.open_run(run)

    @property
    def price(self) -> Price | None:
        """What the server costs, when the settings say it."""
        if self.settings.price is None:
            return None
        from tui.sources.run_listing import Price

        return Price(self.settings.price, self.settings.price_currency, self.settings.price_period)

    # What screens use

    def background(
        self,
        task: Callable[[], T],
        done: Callable[[T], Any] | None = None,
        *,
        failed: Callable[[FtuiError], Any] | None = None,
        busy: str | None = None,
    ) -> None:
        """Run `task` in a thread, then `done` with its result; its error goes to `failed`, or is shown."""
        if busy:
            self.notify(busy, markup=False, timeout=3)
        self._in_thread(task, done, failed or self.report)

    @work(thread=True, group="background")
    def _in_thread(
        self, task: Callable[[], T], done: Callable[[T], Any] | None, failed: Callable[[FtuiError], Any]
    ) -> None:
        try:
            result = task()
        except Exception as error:  # noqa: BLE001 - what one action meets (a full disk) does not end the app
            self.call_later(failed, self.as_ours(error))
        else:
            if done is not None:
                self.call_later(done, result)

    def as_ours(self, error: Exception) -> FtuiError:
        """An error as it can be shown; the traceback of one that is not ours goes to the log."""
        from tui.crashlog import record

        return error if isinstance(error, FtuiError) else record(error, str(self.workspace.root))

    def report(self, error: FtuiError) -> None:
        """Show an error until it is read."""
        from tui.modals.detail import Detail

        self.push_screen(Detail(error))

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: SeverityLevel = "information",
        timeout: float | None = None,
        markup: bool = True,
    ) -> None:
        """Say something in passing: a confirmation in the line of the keys, where it covers no figure."""
        from tui.widgets.key_bar import KeyBar

        bar = next(iter(self.screen.query(KeyBar)), None)
        if bar is None or severity != "information" or "\n" in message:
            super().notify(message, title=title, severity=severity, timeout=timeout, markup=markup)
        else:
            bar.say(message, SAID_S if timeout is None else timeout)

    def confirm(self, text: str, callback: Callable[[], Any]) -> None:
        """Ask, and call back on yes."""
        from tui.modals.confirm import Confirm

        self.push_screen(Confirm(text), lambda yes: callback() if yes else None)

    def copy(self, text: str, what: str) -> None:
        """Put `text` on the clipboard of the user's own machine; say `what` was copied, and how else to get it."""
        from tui import tmux

        if not tmux.copy(text):
            self.copy_to_clipboard(text)
        said = _("copied: {what}. Not there? shift + drag selects").format(what=what)
        self.notify(said, markup=False, timeout=4)

    def rich_color(self, name: str) -> str:
        """A theme color as Rich names it."""
        from textual.color import Color

        return Color.parse(self.theme_variables[name]).rich_color.name

    def choose_theme(self, name: str) -> None:
        """Use a theme, now and next time."""
        self.theme = name
        self.background(lambda: settings.save(theme=name))

    def key_table(self, screen: Screen[Any]) -> str | None:
        """The key table of a screen, by its class."""
        tables = {
            "HomeScreen": "home",
            "RunScreen": "run",
            "CheckpointsScreen": "checkpoints",
            "PlannerScreen": "planner",
            "DataScreen": "data",
            "ReadingScreen": "reading",
            "SamplesScreen": "samples",
            "ServeScreen": "serve",
        }
        return tables.get(type(screen).__name__)

    # Keys

    def action_help(self) -> None:
        """All keys."""
        from tui.modals.help import Help

        if not isinstance(self.screen, Help):
            self.push_screen(Help(self.key_table(self.screen)))

    def action_quit_app(self) -> None:
        """Leave; what runs goes on."""
        self.exit()


def run(workspace: Workspace, *, open_run: str | None = None, then: Callable[[FtuiApp], Any] | None = None) -> int:
    """Run the app in this terminal and return its exit code.

    Raises:
        UsageError: there is no terminal, or no such run.
        FtuiError: something unexpected happened; the log has the traceback.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            _("the terminal app needs a terminal"),
            fix=_("use `ftui runs`, `ftui status RUN` or `ftui watch RUN` here"),
            kind="no_terminal",
        )
    for name in ("COLUMNS", "LINES"):  # a shell that exports them would freeze the size
        os.environ.pop(name, None)
    app = FtuiApp(workspace, open_run, then)
    app.run()
    if app.failure is not None:
        raise app.failure
    if app.return_code in (None, 0) and (text := farewell([row.name for row in app.runs or () if row.live])):
        print(text)  # noqa: T201 - the screen is gone, this is the shell's again
    return app.return_code or 0
