"""Home: the list of runs, and for a newcomer the way to a first one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, cast

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.screen import Screen
from textual.widgets import Static

from engine.text import _, when
from tui.keys import bindings
from tui.paths import short
from tui.widgets.header_bar import HeaderBar, at_risk
from tui.widgets.key_bar import KeyBar
from tui.widgets.run_table import RunTable

if TYPE_CHECKING:
    from engine.errors import FtuiError
    from engine.workspace import RunFolder
    from tui.app import FtuiApp
    from tui.sources.run_listing import RunRow


class HomeScreen(Screen[None]):
    """All runs of the workspace, newest first."""

    BINDINGS: ClassVar = bindings("home")
    AUTO_FOCUS = "RunTable"
    VERTICAL_BREAKPOINTS = [(0, "-short"), (18, "-tall")]  # noqa: RUF012 - an instance variable of Screen

    def __init__(self) -> None:
        super().__init__()
        self._starting = False

    @property
    def ftui(self) -> FtuiApp:
        """The app, by its own type."""
        return cast("FtuiApp", self.app)

    @property
    def table(self) -> RunTable:
        """The list."""
        return self.query_one(RunTable)

    def compose(self) -> ComposeResult:
        """Header, list (or the first steps), details of the selected run, keys."""
        ascii_only = self.ftui.ascii_only
        yield HeaderBar(ascii_only=ascii_only)
        yield RunTable(ascii_only=ascii_only, price=self.ftui.price)
        yield Static(id="first-steps")
        yield Static(id="details")
        yield KeyBar("home", "app")

    def on_mount(self) -> None:
        """Follow the app's list of runs, and its colors."""
        self.watch(self.app, "runs", self._follow)
        self.app.theme_changed_signal.subscribe(self, lambda _theme: self._draw_text())

    def on_screen_resume(self) -> None:
        """Catch up with what happened while another screen was in front."""
        self.query_one(HeaderBar).show(self.ftui.runs)
        self.show(self.ftui.runs)

    def _follow(self, rows: tuple[RunRow, ...] | None) -> None:
        # Textual draws the screen in front again, all of it, when one behind it changes.
        if self.app.screen is self or self.app.screen.is_modal:
            self.show(rows)

    def show(self, rows: tuple[RunRow, ...] | None) -> None:
        """Take a new list of runs; None: not read yet."""
        if rows is None:
            return
        self.set_class(not rows, "-empty")
        self.add_class("-read")
        self.table.show(rows)
        self._draw_text()

    def _draw_text(self) -> None:
        if self.has_class("-empty"):
            self._replace("#first-steps", self._first_steps())
        self._show_details()

    @on(RunTable.Moved)
    def _show_details(self) -> None:
        self._replace("#details", self._details(self.table.selected))

    def _replace(self, where: str, text: Text) -> None:
        widget = self.query_one(where, Static)
        if widget.content != text:
            widget.update(text, layout=False)

    def _color(self, name: str) -> str:
        return self.ftui.rich_color(name)

    def _first_steps(self) -> Text:
        accent, muted = self._color("accent"), self._color("muted")
        text = Text()
        text.append(_("No runs yet.") + "\n\n")
        for key, what, more in (
            ("d", _("watch the demo"), _("a small built-in model learns from built-in conversations")),
            ("n", _("new run"), _("from a recipe, with your own model and data")),
            ("p", _("plan"), _("will it fit, how long does it take, what does it cost")),
            ("?", _("all keys"), ""),
        ):
            text.append(f"  {key}  ", f"bold {accent}").append(what)
            text.append(f"\n     {more}\n\n" if more else "\n\n", muted)
        text.append(_("Runs go on without this terminal; `ftui` shows them again.") + "\n", muted)
        text.append(short(self.ftui.workspace.root), muted)
        return text

    def _details(self, row: RunRow | None) -> Text:
        """Three lines about the selected run: what is wrong or at risk, the fix, the place."""
        text = Text(no_wrap=True, overflow="ellipsis")
        if row is None:
            return text
        muted = self._color("muted")
        if row.error:
            text.append(row.error.splitlines()[0] + "\n", self._color("error"))
            text.append(_("fix  "), muted).append((row.fix or _("enter shows its log")).splitlines()[0] + "\n")
        elif row.live and row.step:
            text.append(at_risk(row)[0][0] + "\n", self._color("warning") if row.saved_step is None else "")
            text.append(_("started {when}").format(when=when(row.started or row.created)) + "\n", muted)
        else:
            text.append(self._hint(row) + "\n")
            text.append(_("made {when}").format(when=when(row.created)) + "\n", muted)
        return text.append(short(row.run.path), muted)

    @staticmethod
    def _hint(row: RunRow) -> str:
        if row.state == "stopped":
            return _("stopped with everything saved; r goes on")
        if row.state == "lost":
            return _("its supervisor is gone; r goes on from the newest checkpoint")
        if row.state == "done":
            return _("done: m serves it; the result is in its folder final/")
        return _("on its way")

    # Actions

    def action_open_run(self) -> None:
        """Open the selected run."""
        if row := self.table.selected:
            self.ftui.open_run(row.run)

    @on(RunTable.Opened)
    def _opened(self) -> None:
        self.action_open_run()

    def action_new_run(self) -> None:
        """Start a run from a recipe."""
        from tui.modals.new_run import NewRun

        self.ftui.to_users_folder()
        self.app.push_screen(NewRun(self.ftui.workspace), self.ftui.opened)

    def action_plan(self) -> None:
        """Will it fit, how long, how much."""
        self.ftui.open_planner()

    def action_data(self) -> None:
        """Look at the data of the selected run, or at any."""
        row = self.table.selected
        if row is None:
            self.ftui.ask_data()
        else:
            self.ftui.open_data_of(row.run)

    def action_serve(self) -> None:
        """Serve the selected run's result, or any model."""
        row = self.table.selected
        if row is None:
            self.ftui.ask_serve()
        else:
            self.ftui.open_serve(row.name)

    def action_demo(self) -> None:
        """Start the demo; a second press while it starts does not start a second one."""
        if self._starting:
            return
        self._starting = True
        workspace = self.ftui.workspace

        def start() -> RunFolder:
            from engine.run import launch

            return launch.start(workspace, "demo").run

        def started(run: RunFolder) -> None:
            self._starting = False
            self.ftui.opened(run)

        def failed(error: FtuiError) -> None:
            self._starting = False
            self.ftui.report(error)

        self.ftui.background(start, started, failed=failed, busy=_("starting the demo"))

    def action_resume_run(self) -> None:
        """Go on with a run that stopped, failed or was lost."""
        row = self.table.selected
        if row is None:
            return
        if row.state not in ("stopped", "failed", "lost"):
            self.notify(_("{run} is {state}: nothing to resume").format(run=row.name, state=row.state), markup=False)
            return

        def resume() -> RunFolder:
            from engine.run import resuming

            return resuming.resume(row.run).run

        self.ftui.background(resume, self.ftui.opened, busy=_("resuming {run}").format(run=row.name))

    def action_stop_run(self) -> None:
        """Stop a run at its next step, with everything saved."""
        row = self.table.selected
        if row is None:
            return
        if not row.live:
            self.notify(_("{run} is not running").format(run=row.name), markup=False)
            return

        def stop() -> dict[str, Any]:
            from engine.run import control

            return control.send(row.run, "stop")

        def said(_answer: object) -> None:
            self.notify(_("{run} saves and stops").format(run=row.name), markup=False)

        question = _("Stop {run} with everything saved? It can be resumed.").format(run=row.name)
        self.ftui.confirm(question, lambda: self.ftui.background(stop, said))

    def action_copy(self) -> None:
        """Copy the selected run's path, or its error."""
        if row := self.table.selected:
            what = _("the run's error and path") if row.error else _("the run's path")
            text = "\n".join(part for part in (row.error, row.fix, str(row.run.path)) if part)
            self.ftui.copy(text, what)
