"""The checkpoints of a run: what is there, what stays and why, how full the disk will be; and the keys that act."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from textual import on, work
from textual.app import ComposeResult
from textual.message import Message
from textual.screen import Screen

from engine.errors import FtuiError
from engine.text import _, gigabytes, ngettext
from engine.workspace import RunFolder
from tui.checkpoint_compare import compared
from tui.keys import bindings
from tui.modals.ask import Ask
from tui.modals.report import Report
from tui.screens.checkpoint_backup import BackupKeys
from tui.sources.checkpoint_source import CheckpointSource
from tui.state.checkpoints import CheckpointRow, CheckpointsSnapshot
from tui.state.snapshot import RESUMABLE
from tui.widgets.backup_strip import BackupStrip, LossLine
from tui.widgets.cells import Ink
from tui.widgets.checkpoint_facts import CheckpointDetails, CheckpointHeader, DiskGauge, place
from tui.widgets.checkpoint_table import CheckpointTable
from tui.widgets.figures import whole
from tui.widgets.key_bar import KeyBar

if TYPE_CHECKING:
    from engine.checkpoint.pruning import Plan
    from engine.checkpoint.verify import Report as Verified
    from engine.run.drill import Drill
    from tui.app import FtuiApp

POLL_S = 1.0
DONE_S = 4.0


class CheckpointsRead(Message):
    """The checkpoints are no longer as they were shown."""

    def __init__(self, snapshot: CheckpointsSnapshot) -> None:
        super().__init__()
        self.snapshot = snapshot

    def can_replace(self, message: Message) -> bool:
        """A newer snapshot makes one that still waits pointless."""
        return isinstance(message, CheckpointsRead)


class CheckpointsScreen(BackupKeys, Screen[None]):
    """Follows the checkpoints of one run as long as it is in front."""

    CSS_PATH = "checkpoints.tcss"
    BINDINGS: ClassVar = bindings("checkpoints")
    AUTO_FOCUS = "CheckpointTable"
    VERTICAL_BREAKPOINTS = [(0, "-short"), (18, "-tall")]  # noqa: RUF012

    def __init__(self, run: RunFolder) -> None:
        super().__init__()
        self.folder = run
        self.snapshot = CheckpointsSnapshot(run=run.name)
        self.verdicts: dict[str, str] = {}
        self._marked: CheckpointRow | None = None
        self._busy = False
        self._ended = threading.Event()
        self._in_front = threading.Event()
        self._wake = threading.Event()

    @property
    def ftui(self) -> FtuiApp:
        """The app, by its own type."""
        return cast("FtuiApp", self.app)

    @property
    def table(self) -> CheckpointTable:
        """The list."""
        return self.query_one(CheckpointTable)

    def compose(self) -> ComposeResult:
        """Header, disk, table, the selected one, keys."""
        yield CheckpointHeader()
        yield LossLine()
        yield DiskGauge()
        yield BackupStrip()
        yield CheckpointTable()
        yield CheckpointDetails()
        yield KeyBar("checkpoints", "app")

    def on_mount(self) -> None:
        self._follow()

    def on_screen_resume(self) -> None:
        self._in_front.set()
        self._wake.set()

    def on_screen_suspend(self) -> None:
        if not self.app.screen.is_modal:
            self._in_front.clear()

    def on_unmount(self) -> None:
        self._ended.set()
        self._in_front.set()
        self._wake.set()

    # Reading

    @work(thread=True, group="checkpoint-source", exclusive=True)
    def _follow(self) -> None:
        source, shown = CheckpointSource(self.folder), None
        while self._in_front.wait() and not self._ended.is_set():
            self._wake.clear()
            try:
                snapshot = source.poll()
            except OSError as error:
                self.app.call_from_thread(self._refused, FtuiError(str(error), where=str(self.folder.path)))
                self._ended.wait(5.0)
                continue
            if snapshot is not shown:
                shown = snapshot
                self.post_message(CheckpointsRead(snapshot))
            self._wake.wait(POLL_S)

    @on(CheckpointsRead)
    def _read(self, message: CheckpointsRead) -> None:
        state, self.snapshot = self.snapshot.state, message.snapshot
        self._draw()
        if state != self.snapshot.state:
            self.refresh_bindings()

    @on(CheckpointTable.Moved)
    def _draw(self) -> None:
        with self.app.batch_update():
            self.query_one(CheckpointHeader).show(self.snapshot)
            self.query_one(LossLine).show(self.snapshot.backup)
            self.query_one(DiskGauge).show(self.snapshot)
            self.query_one(BackupStrip).show(self.snapshot.backup, self.snapshot.lease)
            self.table.show(self.snapshot, self.verdicts)
            self.query_one(CheckpointDetails).show(self._details())

    def _details(self) -> list[tuple[str, Ink]]:
        row = self.table.selected
        if row is None:
            return []
        lines = [(place(row.path), Ink.MUTED)]
        if row.problem:
            return [(row.problem, Ink.ERROR if row.state == "damaged" else Ink.WARNING), *lines]
        if self._marked is not None:
            lines.insert(0, (_("= compares with checkpoint {step}").format(step=whole(self._marked.step)), Ink.ACCENT))
        return lines

    # Acting

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """A live run is not resumed, nor one that is done."""
        return (self.snapshot.state in RESUMABLE or None) if action == "resume_from" else True

    def _selected(self) -> CheckpointRow | None:
        row = self.table.selected
        if row is None or row.state in ("writing", "leftover"):
            self.notify(_("no checkpoint is selected"), markup=False)
            return None
        return row

    def _background(self, what: str, task: Any, done: Any) -> None:
        """One long thing at a time."""
        if self._busy:
            self.notify(_("it still works on something else"), markup=False)
            return
        self._busy = True

        def finished(result: Any) -> None:
            self._busy = False
            if self.is_attached:
                done(result)
            self._wake.set()

        def failed(error: FtuiError) -> None:
            self._busy = False
            self._refused(error)

        self.ftui.background(task, finished, failed=failed, busy=what)

    def _refused(self, error: FtuiError) -> None:
        self.ftui.report(error)

    def _say(self, text: str) -> None:
        self.notify(text, markup=False, timeout=DONE_S)

    def action_back(self) -> None:
        """Back to the run."""
        self.app.pop_screen()

    def action_verify(self) -> None:
        """Read the selected checkpoint and say what is wrong with it."""
        if (row := self._selected()) is None:
            return

        def task() -> Verified:
            from engine.checkpoint import verify

            return verify.verify(Path(row.path))

        self._background(
            _("reading checkpoint {step}").format(step=whole(row.step)), task, partial(self._verified, row)
        )

    def _verified(self, row: CheckpointRow, report: Verified) -> None:
        checked = report.checkpoints[0] if report.checkpoints else None
        if checked is None:
            self._say(_("it is gone"))
            return
        states = {"complete": "verified", "foreign": "foreign"}
        state = states.get(checked.state, "not_exact" if checked.resumable else "damaged")
        self.verdicts[row.name] = state
        self._draw()
        told = [finding for finding in checked.findings if finding.level != "note"]
        if not told:
            self._say(_("checkpoint {step}: every byte is right").format(step=whole(row.step)))
            return
        lines = [line for finding in told for line in (f"{finding.kind}: {finding.detail}", f"  {finding.fix}", "")]
        self.app.push_screen(Report(_("checkpoint {step}").format(step=whole(row.step)), lines))

    def action_pin(self) -> None:
        """Pin the selected checkpoint, or let it go again."""
        if (row := self._selected()) is None:
            return

        def task() -> Any:
            from engine.checkpoint import pins

            try:
                change = {"remove": row.name} if row.pinned else {"add": row.name}
                return pins.change(self.folder.path, **change)
            except ValueError as error:
                raise FtuiError(
                    _("pins.json cannot be understood, and until then nothing is removed from this run"),
                    where=str(self.folder.path / pins.NAME),
                    fix=_("move the file away, then pin again"),
                ) from error

        text = _("{name} is no longer pinned") if row.pinned else _("{name} is pinned")
        self._background("", task, lambda _pins: self._say(text.format(name=row.name)))

    def action_prune(self) -> None:
        """Show what would go, and why; remove it on yes."""

        def task() -> Plan:
            from engine.checkpoint import pruning

            state = self.folder.read_state()
            return pruning.plan(self.folder.path, in_use=state.get("resumed_from") if self.snapshot.live else None)

        self._background("", task, self._preview)

    def _preview(self, plan: Plan) -> None:
        going = [verdict for verdict in plan.verdicts if verdict.action != "stay"]
        if not going:
            self._say(_("nothing to remove"))
            return
        lines = []
        for verdict in reversed(plan.verdicts):
            what = {"go": _("goes"), "reduce": _("shrinks")}.get(verdict.action, _("stays"))
            size = gigabytes(verdict.entry.bytes)
            lines.append(f"{whole(verdict.entry.step):>9}  {size:>9}  {what:<8} {verdict.reason}")
        question = ngettext(
            "Remove {n} checkpoint? {size} are freed.", "Remove {n} checkpoints? {size} are freed.", len(going)
        )
        title = question.format(n=len(going), size=gigabytes(plan.bytes))

        def remove(yes: bool | None) -> None:
            if yes:
                from engine.checkpoint import pruning

                self._background(
                    "", lambda: pruning.remove(plan), lambda gone: self._say(_("{n} removed").format(n=len(gone)))
                )

        self.app.push_screen(Report(title, lines, ask=True), remove)

    def action_resume_from(self) -> None:
        """Go on from the selected checkpoint."""
        if (row := self._selected()) is None:
            return

        def task() -> Any:
            from engine.run import resuming

            return resuming.resume(self.folder, step=row.step)

        later = [other.step for other in self.snapshot.rows if other.step > row.step and other.resumable]
        text = _("Resume {run} from step {step}?").format(run=self.folder.name, step=whole(row.step))
        if later:
            text += " " + _(
                "What was trained after it is trained again; its checkpoints stay until retention takes them."
            )
        busy = _("resuming {run}").format(run=self.folder.name)
        self.ftui.confirm(text, lambda: self._background(busy, task, self._resumed))

    def _resumed(self, started: Any) -> None:
        report = started.resumed or {}
        text = _("{run} goes on from step {step}, exactly")
        if not report.get("exact"):
            text = _("{run} goes on from step {step}; not exact: {why}")
        why = "; ".join(report.get("differs", []))
        self._say(text.format(run=self.folder.name, step=whole(report.get("step")), why=why))

    def action_drill(self) -> None:
        """Prove that a resume from the selected checkpoint works."""
        if (row := self._selected()) is None:
            return

        def task() -> Drill:
            from engine.run import drill

            return drill.drill(self.folder, step=row.step)

        text = _(
            "Train a few steps from step {step} beside the run and compare the losses? It takes as long as a start."
        )
        busy = _("drill from step {step}").format(step=whole(row.step))
        self.ftui.confirm(text.format(step=whole(row.step)), lambda: self._background(busy, task, self._drilled))

    def _drilled(self, found: Drill) -> None:
        if found.passed:
            equal = bool(found.compared) and all(line["equal"] for line in found.compared)
            more = _("every loss equal to the last digit") if equal else _("the losses are close")
            self._say(_("a resume from step {step} works: {more}").format(step=whole(found.step), more=more))
            return
        raise_ = FtuiError(
            _("a resume from step {step} does not work: {why}").format(step=whole(found.step), why=found.reason),
            where=f"{found.scratch}/logs",
            fix=_("drill an older checkpoint, and read the logs there"),
        )
        self._refused(raise_)

    def action_export(self) -> None:
        """Copy the selected checkpoint to another folder, hashed on the way."""
        if (row := self._selected()) is None:
            return

        def chosen(text: str | None) -> None:
            if text:
                from engine.files import user_path

                into = user_path(text).absolute()
                busy = _("copying checkpoint {step}").format(step=whole(row.step))
                self._background(busy, partial(_export, row, into), partial(self._exported, row, into))

        self.app.push_screen(Ask(_("copy {name} into").format(name=row.name), str(Path.home())), chosen)

    def _exported(self, row: CheckpointRow, into: Path, _none: object) -> None:
        self._say(
            _("{name} copied to {target}, every hash right").format(name=row.name, target=place(str(into / row.name)))
        )

    def action_mark(self) -> None:
        """Mark the selected checkpoint to compare others with; again: no more."""
        row = self._selected()
        self._marked = None if row is None or (self._marked and self._marked.name == row.name) else row
        self._draw()

    def action_compare(self) -> None:
        """The selected checkpoint beside the marked one, or beside the one before it."""
        if (row := self._selected()) is None:
            return
        older = [
            other
            for other in self.snapshot.rows
            if other.step < row.step and other.state not in ("writing", "leftover")
        ]
        other = self._marked if self._marked and self._marked.name != row.name else (older[0] if older else None)
        if other is None:
            self.notify(_("there is nothing to compare it with"), markup=False)
            return
        title = _("checkpoint {a} beside {b}").format(a=whole(other.step), b=whole(row.step))
        self.ftui.background(partial(compared, other, row), lambda lines: self.app.push_screen(Report(title, lines)))

    def action_copy(self) -> None:
        """The selected checkpoint's path to the clipboard."""
        if (row := self.table.selected) is not None:
            self.ftui.copy(row.path, _("the checkpoint's path"))


def _export(row: CheckpointRow, into: Path) -> None:
    from engine.checkpoint import export

    export.export(Path(row.path), into)
