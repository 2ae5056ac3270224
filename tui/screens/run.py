"""One run, live: its loss, its GPUs, its figures and what happened; and the keys that act on it."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, cast

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Container
from textual.message import Message
from textual.screen import Screen

from engine.errors import FtuiError
from engine.text import _
from engine.workspace import RunFolder
from tui.keys import bindings
from tui.sources.log_tail import LogTail, log_files
from tui.sources.run_source import RunSource
from tui.state.snapshot import FixLine, RunSnapshot
from tui.widgets.gpu_bars import GpuBars
from tui.widgets.key_bar import KeyBar
from tui.widgets.loss_chart import LossChart
from tui.widgets.run_events import RunEvents
from tui.widgets.run_facts import FIXES, RunHeader, RunNotice, RunNumbers, phase_word
from tui.widgets.run_log import RunLog
from tui.widgets.run_table import state_word

if TYPE_CHECKING:
    from tui.app import FtuiApp

UNREADABLE_WAIT_S = 5.0


class SnapshotRead(Message):
    """The run is no longer as it was shown."""

    def __init__(self, snapshot: RunSnapshot) -> None:
        super().__init__()
        self.snapshot = snapshot

    def can_replace(self, message: Message) -> bool:
        """A newer snapshot makes one that still waits pointless."""
        return isinstance(message, SnapshotRead)


class LogRead(Message):
    """New lines of the log on show; `title` names another file, which begins here."""

    def __init__(self, lines: list[str], title: str | None = None) -> None:
        super().__init__()
        self.lines = lines
        self.title = title


class Unreadable(Message):
    """A file of the run cannot be read."""

    def __init__(self, error: OSError) -> None:
        super().__init__()
        self.error = error


class RunScreen(Screen[None]):
    """Follows one run folder as long as the screen is in front."""

    CSS_PATH = "run.tcss"
    BINDINGS: ClassVar = [
        *(b for b in bindings("run") if isinstance(b, Binding) and b.action != "fix"),
        *(Binding(str(n), f"fix({n})", show=False, id=f"run.fix_{n}") for n in range(1, FIXES + 1)),
    ]
    AUTO_FOCUS = ""
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide"), (160, "-broad")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (10, "-low"), (18, "-normal"), (32, "-tall"), (45, "-high")]  # noqa: RUF012

    def __init__(self, run: RunFolder) -> None:
        super().__init__()
        self.folder = run
        self.snapshot = RunSnapshot(name=run.name)
        self._ended = threading.Event()
        self._in_front = threading.Event()
        self._wake = threading.Event()
        self._log_choice: int | None = None  # written here, read by the thread: which of the run's logs is on show

    @property
    def ftui(self) -> FtuiApp:
        """The app, by its own type."""
        return cast("FtuiApp", self.app)

    def compose(self) -> ComposeResult:
        """From what is most to what is least important, and the keys."""
        yield RunHeader()
        yield RunNotice()
        with Container(id="stage"):
            yield LossChart()
            yield GpuBars()
        yield RunNumbers()
        yield RunEvents()
        yield RunLog()
        yield KeyBar("run", "app")

    def on_mount(self) -> None:
        self.query_one(RunNumbers).price = self.ftui.price
        self._follow(1.0 / self.ftui.settings.refresh_hz)

    def on_screen_resume(self) -> None:
        self._in_front.set()
        self._wake.set()

    def on_screen_suspend(self) -> None:
        self._in_front.clear()

    def on_unmount(self) -> None:
        self._ended.set()
        self._in_front.set()
        self._wake.set()

    # Reading

    @work(thread=True, group="run-source", exclusive=True)
    def _follow(self, interval_s: float) -> None:
        """Read the run's files at the refresh rate, in a thread of its own; sleep while another screen is in front."""
        source = RunSource(self.folder)
        shown: RunSnapshot | None = None
        tail: LogTail | None = None
        while self._in_front.wait() and not self._ended.is_set():
            self._wake.clear()
            try:
                snapshot = source.poll()
            except OSError as error:
                self.post_message(Unreadable(error))
                self._ended.wait(UNREADABLE_WAIT_S)
                continue
            if snapshot is not shown:
                shown = snapshot
                self.post_message(SnapshotRead(snapshot))
            tail = self._read_log(tail)
            if not source.more:
                self._wake.wait(interval_s)

    def _read_log(self, tail: LogTail | None) -> LogTail | None:
        choice = self._log_choice
        files = log_files(self.folder) if choice is not None else []
        if choice is None or not files:
            return None
        path = files[choice % len(files)]
        title = None
        if tail is None or tail.path != path:
            tail, title = LogTail(path), path.name
        lines = tail.poll()
        if lines or title:
            self.post_message(LogRead(lines, title))
        return tail

    @on(SnapshotRead)
    def _show(self, message: SnapshotRead) -> None:
        before, self.snapshot = self.snapshot, message.snapshot
        snapshot, numbers = message.snapshot, message.snapshot.numbers
        with self.app.batch_update():
            self.query_one(RunHeader).show(snapshot)
            self.query_one(RunNotice).show(snapshot)
            best = (numbers.best_eval, numbers.best_eval_step or 0.0) if numbers.best_eval is not None else None
            waiting = (phase_word(snapshot.phase) or _("waiting for the first step")) if snapshot.live else ""
            self.query_one(LossChart).show(
                snapshot.train, snapshot.evaluation, best=best, max_steps=snapshot.max_steps, waiting=waiting
            )
            predicted = snapshot.plan.memory if snapshot.plan is not None else None
            self.query_one(GpuBars).show(snapshot.gpus, snapshot.host, predicted, stale=not snapshot.live)
            self.query_one(RunNumbers).show(snapshot)
            self.query_one(RunEvents).show(snapshot.events)
        if (before.live, before.resumable, before.post_mortem) != (
            snapshot.live, snapshot.resumable, snapshot.post_mortem,
        ):  # fmt: skip
            self.refresh_bindings()

    @on(LogRead)
    def _show_log(self, message: LogRead) -> None:
        log = self.query_one(RunLog)
        if message.title is not None:
            log.restart(message.title)
        if message.lines:
            log.write_lines(message.lines)

    @on(Unreadable)
    def _say_unreadable(self, message: Unreadable) -> None:
        error = message.error
        text = _("{file} cannot be read: {reason}").format(file=error.filename, reason=error.strerror or error)
        self.notify(text, severity="error", markup=False, timeout=UNREADABLE_WAIT_S)

    # Acting on the run

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """What cannot be done now has no key: a run that has ended cannot save, a live one cannot resume."""
        if action in ("save_now", "stop_run", "evaluate_now"):
            return self.snapshot.live or None
        if action == "resume_run":
            return self.snapshot.resumable or None
        if action == "fix":
            return any(fix.applicable for fix in self._fixes()) or None
        return True

    def action_back(self) -> None:
        """Without the chart's cursor first; then to the list of runs."""
        if not self.query_one(LossChart).clear_cursor():
            self.app.pop_screen()

    def action_save_now(self) -> None:
        """A checkpoint at the end of this step."""
        self._ask("save", _("a checkpoint is written at the end of this step"))

    def action_evaluate_now(self) -> None:
        """An evaluation at the end of this step."""
        self._ask("evaluate", _("it evaluates at the end of this step"))

    def action_stop_run(self) -> None:
        """Save, then stop; after a question."""
        question = _("Stop {run} with everything saved? It can be resumed.").format(run=self.folder.name)
        done = _("it saves and stops at the end of this step")
        self.ftui.confirm(question, partial(self._ask, "stop", done))

    def _ask(self, what: str, done: str) -> None:
        def task() -> Any:
            from engine.run import control

            return control.send(self.folder, what)

        self.ftui.background(task, lambda _answer: self.notify(done, markup=False, timeout=3), failed=self._refused)

    def action_resume_run(self) -> None:
        """Go on with a run that stopped, failed or was lost."""

        def task() -> Any:
            from engine.run import resuming

            return resuming.resume(self.folder)

        done = _("{run} goes on").format(run=self.folder.name)
        self.ftui.background(
            task,
            lambda _started: self.notify(done, markup=False, timeout=3),
            failed=self._refused,
            busy=_("resuming {run}").format(run=self.folder.name),
        )

    def _fixes(self) -> tuple[FixLine, ...]:
        found = self.snapshot.post_mortem
        return () if found is None else found.fixes[:FIXES]

    def action_fix(self, number: int = 1) -> None:
        """Do what a fix of the post-mortem says, after a question: resume with it, or start a new run."""
        fixes = self._fixes()
        if not 1 <= number <= len(fixes) or not fixes[number - 1].applicable:
            return

        def task() -> Any:
            from engine.run import diagnose

            return diagnose.apply(self.folder, diagnose.diagnose(self.folder), number)

        def done(started: Any) -> None:
            if started.run.path == self.folder.path:
                self.notify(_("{run} goes on").format(run=self.folder.name), markup=False, timeout=3)
            else:
                self.ftui.opened(started.run)

        fix = fixes[number - 1]
        busy = _("applying fix {n}").format(n=number)
        self.ftui.confirm(
            f"{fix.text}\n\n{fix.command}", lambda: self.ftui.background(task, done, failed=self._refused, busy=busy)
        )

    def action_checkpoints(self) -> None:
        """The run's checkpoints."""
        from tui.screens.checkpoints import CheckpointsScreen

        self.app.push_screen(CheckpointsScreen(self.folder))

    def _refused(self, error: FtuiError) -> None:
        text = error.what if not error.fix else f"{error.what}\n{error.fix}"
        self.notify(text, severity="error", markup=False, timeout=10)

    # Looking at it

    def action_data(self) -> None:
        """Look at the run's data."""
        self.ftui.open_data_of(self.folder)

    def action_toggle_log_y(self) -> None:
        """Linear or logarithmic losses."""
        self.query_one(LossChart).toggle_log()

    def action_zoom(self, direction: int) -> None:
        """Fewer (1) or more (-1) steps."""
        self.query_one(LossChart).zoom(direction)

    def action_fit(self) -> None:
        """The whole run."""
        self.query_one(LossChart).fit()

    def action_cursor(self, cells: int) -> None:
        """Inspect the curve."""
        self.query_one(LossChart).move_cursor(cells)

    def action_toggle_log(self) -> None:
        """Through the run's logs, then none."""
        count = len(log_files(self.folder))
        following = 0 if self._log_choice is None else self._log_choice + 1
        self._log_choice = following if following < count else None
        if not count:
            self.notify(_("no log was written yet"), markup=False)
        self.set_class(self._log_choice is not None, "-log")
        self._wake.set()

    def action_scroll_log(self, by: int) -> None:
        """Older or newer lines of the log."""
        self.query_one(RunLog).scroll_pages(by)

    def action_shift_log(self, by: int) -> None:
        """The rest of its long lines."""
        self.query_one(RunLog).shift(by)

    def action_read_answers(self) -> None:
        """Base and tuned answers, side by side and blind."""
        from tui.screens.reading import ReadingScreen

        self.app.push_screen(ReadingScreen(self.folder))

    def action_serve(self) -> None:
        """Serve the run's result."""
        self.ftui.open_serve(self.folder.name)

    def action_samples(self) -> None:
        """What the model answered to fixed prompts at each evaluation."""
        from tui.screens.samples import SamplesScreen

        self.app.push_screen(SamplesScreen(self.folder))

    def action_copy(self) -> None:
        """The error, or the figures, to the clipboard."""
        notice = self.query_one(RunNotice).text()
        figures = self.query_one(RunNumbers).text()
        state = f"{self.folder.name}: {state_word(self.snapshot.state)}"
        text = "\n".join(part for part in (state, notice, figures, str(self.folder.path)) if part)
        self.ftui.copy(text, _("the run's state and figures"))
