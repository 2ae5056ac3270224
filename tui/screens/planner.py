"""The planner: a form that answers on each key with what fits, how long it takes, what it costs and what to change."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.screen import Screen
from textual.timer import Timer

from engine.errors import FtuiError, UsageError
from engine.plan.draft import Draft, Here, open_recipe
from engine.text import _
from engine.workspace import RunFolder
from tui.keys import bindings
from tui.widgets.cells import Cells, CellWidget, Ink
from tui.widgets.header_bar import HeaderBar
from tui.widgets.key_bar import KeyBar
from tui.widgets.plan_form import SERVER, Complete, FieldChanged, PlanForm
from tui.widgets.plan_view import Outcome, PlanView, steps_of

if TYPE_CHECKING:
    from tui.app import FtuiApp
    from tui.sources.probe import Probe

FIRST = "lora-sft"
TICK_S = 0.03  # the key is echoed first; the answer is painted one tick later, once for all keys of that tick
KEPT = 100  # drafts to go back to


class Planned(Message):
    """A plan is ready, or why there is none."""

    def __init__(self, number: int, draft: Draft, outcome: Outcome | None, error: FtuiError | None) -> None:
        super().__init__()
        self.number, self.draft, self.outcome, self.error = number, draft, outcome, error


class PlanTitle(CellWidget):
    """Which recipe, and what is changed in it."""

    DEFAULT_CSS = """
    PlanTitle { height: 1; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._draft: Draft | None = None

    def show(self, draft: Draft) -> None:
        """Name this draft."""
        self._draft = draft
        self.repaint()

    def paint(self, cells: Cells) -> None:
        """The name is never cut off by the changes."""
        x = cells.put(1, 0, _("PLAN"), Ink.STRONG) + 2
        if self._draft is None:
            return
        x = cells.put(x, 0, _recipe_name(self._draft.path), Ink.ACCENT) + 2
        if self._draft.problems:
            text = f"{self.glyphs.cross} {self._draft.problems[0].detail}"
            cells.put(x, 0, text, Ink.ERROR)
        elif self._draft.changes:
            text = _("changed: {keys}").format(keys=", ".join(self._draft.changes))
            cells.put(x, 0, text, Ink.WARNING)


def _recipe_name(path: Path) -> str:
    from engine import recipe

    if path.parent == recipe.find(FIRST).parent:
        return path.stem
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


class PlannerScreen(Screen[None]):
    """Plans a recipe, changes it, writes it, starts it.

    Args:
        name: a recipe file, or the name of a built-in one.
        overrides: `key=value` texts over it.
    """

    CSS_PATH = "planner.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        *(b for b in bindings("planner") if isinstance(b, Binding) and b.action != "apply"),
        *(Binding(str(n), f"apply({n})", show=False, id=f"planner.apply_{n}") for n in range(1, 10)),
    ]
    AUTO_FOCUS = ""
    VERTICAL_BREAKPOINTS = [(0, "-low"), (30, "-tall")]  # noqa: RUF012 - an instance variable of Screen

    def __init__(self, name: str | Path | None = None, overrides: Sequence[str] = ()) -> None:
        super().__init__()
        self._asked = (name or FIRST, list(overrides))
        self._draft: Draft | None = None
        self._values: dict[str, Any] = {}
        self._outcome: Outcome | None = None
        self._before: list[Draft] = []
        self._last_key: str | None = None
        self._number = 0  # of the newest change
        self._answered = 0  # of the newest answer on the screen
        self._timer: Timer | None = None
        self._starting = False
        self._probe: Probe | None = None

    @property
    def ftui(self) -> FtuiApp:
        """The app, by its own type."""
        return cast("FtuiApp", self.app)

    def compose(self) -> ComposeResult:
        """What runs, which recipe, the form, the answer, the keys."""
        yield HeaderBar(ascii_only=self.ftui.ascii_only)
        yield PlanTitle()
        yield PlanForm()
        yield PlanView()
        yield KeyBar("planner", "app")

    def on_mount(self) -> None:
        """Look at this machine and read the recipe, in a thread: a driver may take its time."""
        self.query_one(HeaderBar).show(self.ftui.runs)
        self._open(*self._asked)

    def _open(self, name: str | Path, overrides: list[str]) -> None:
        here = self._draft.here if self._draft is not None else None

        def read() -> Draft:
            return open_recipe(name, here or Here.look(), overrides)

        self.ftui.background(read, self._opened, failed=self._not_opened)

    def _opened(self, draft: Draft) -> None:
        if self.is_mounted:
            self._before.clear()
            self._take(draft)

    def _not_opened(self, error: FtuiError) -> None:
        if self._draft is None and self.is_mounted:
            self.app.pop_screen()
        self.ftui.report(error)

    # The draft

    def _take(self, draft: Draft, typing: str | None = None) -> None:
        """Go on with this draft: the form now, the answer a tick later."""
        self._draft = draft
        self.query_one(PlanTitle).show(draft)
        try:
            self._values = draft.values()
        except UsageError:  # the plan says what is wrong; what follows from the recipe stays as it was
            self._values = {**self._values, **draft.said}
        self.query_one(PlanForm).show(draft, self._values, typing)
        self._answer_soon()
        self.refresh_bindings()

    def _answer_soon(self) -> None:
        self._number += 1
        if self._timer is not None:
            self._timer.stop()
        self._timer = self.set_timer(TICK_S, partial(self._compute, self._draft, self._number))

    @property
    def settled(self) -> bool:
        """Whether the newest change has been answered."""
        return self._answered == self._number

    @on(FieldChanged)
    def _changed(self, message: FieldChanged) -> None:
        message.stop()
        if self._draft is None:
            return
        try:
            if message.error is not None:
                raise message.error
            if message.key == SERVER:
                draft = self._draft.on(message.value or "")
            else:
                draft = self._draft.change(message.key, message.value)
        except UsageError as error:
            self._number += 1  # an answer on its way is no longer one
            self._answered = self._number
            self._show(None, error)
            return
        if message.key != self._last_key:  # what is typed into one field is one change
            self._remember()
            self._last_key = message.key
        self._take(draft, typing=message.key)

    def _remember(self) -> None:
        if self._draft is not None:
            self._before = [*self._before[-KEPT:], self._draft]
        self._last_key = None

    @work(thread=True, exclusive=True, group="plan")
    def _compute(self, draft: Draft, number: int) -> None:
        outcome: Outcome | None = None
        error: FtuiError | None = None
        try:
            outcome = self._plan(draft)
        except FtuiError as found:
            error = found
        self.post_message(Planned(number, draft, outcome, error))

    def _plan(self, draft: Draft) -> Outcome:
        workspace, price = self.ftui.workspace, self.ftui.price
        result = draft.plan(workspace)
        own = price.of(result.hours) if not draft.server and price is not None and result.hours is not None else None
        return Outcome(
            result,
            steps=steps_of(result),
            own_cost=None if own is None or price is None else (own, price.currency),
            appliable=tuple(draft.apply(row) is not None for row in result.advice),
        )

    @on(Planned)
    def _planned(self, message: Planned) -> None:
        if message.number == self._number:
            self._answered = message.number
            self._show(message.outcome, message.error)

    def _show(self, outcome: Outcome | None, error: FtuiError | None) -> None:
        self._outcome = outcome
        self.query_one(PlanView).show(outcome, error)
        form = self.query_one(PlanForm)
        form.mark(None if error is None else error.where)
        if outcome is not None:
            form.show_sharding(outcome.result.request.sharding)
        self.refresh_bindings()

    # Keys

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """What cannot be done now has no key."""
        if action == "apply":
            return (self._outcome is not None and any(self._outcome.appliable)) or None
        if action == "undo":
            return bool(self._before) or None
        if action == "probe":  # it trains here
            return (self._draft is not None and not self._draft.server) or None
        return True

    def action_apply(self, number: int = 1) -> None:
        """Take a piece of advice."""
        if self._draft is None or self._outcome is None or number > len(self._outcome.result.advice):
            return
        draft = self._draft.apply(self._outcome.result.advice[number - 1])
        if draft is None:
            self.notify(_("a recipe cannot say that"), markup=False)
            return
        self._remember()
        self._take(draft)

    def action_undo(self) -> None:
        """Take the last change back."""
        if self._before:
            self._last_key = None
            self._take(self._before.pop())

    def action_move(self, by: int) -> None:
        """The next field, or the one before."""
        self.focus_next() if by > 0 else self.focus_previous()

    def action_data(self) -> None:
        """Look at the recipe's data; what its lengths suggest comes back into the draft."""
        if self._draft is None:
            return
        from engine.recipe.columns import of

        values = self._values
        name, length = values.get("dataset_path"), values.get("max_length")
        if not isinstance(name, str) or not name or name.startswith("builtin:"):
            self.notify(_("the recipe names no data of yours"), markup=False)
            return
        model = values.get("model_name_or_path")
        self.ftui.open_data(
            [name],
            model=model if isinstance(model, str) else None,
            max_length=length if isinstance(length, int) else None,
            columns=of(values),
            then=self._suggested,
        )

    def _suggested(self, changes: dict[str, Any]) -> None:
        if self._draft is None:
            return
        self._remember()
        draft = self._draft
        for key, value in changes.items():
            draft = draft.change(key, value)
        self._take(draft)

    def action_copy(self) -> None:
        """The plan as text."""
        self.ftui.copy(self.query_one(PlanView).text(), _("the plan"))

    def action_back(self) -> None:
        """Out of a field first; then back, after a question where changes would be lost."""
        if self.focused is not None:
            self.set_focus(None)
        elif self._draft is not None and self._draft.changes:
            self.ftui.confirm(_("Leave the planner? The changes are in no file."), self.dismiss)
        else:
            self.dismiss()

    # Recipes

    def action_open(self) -> None:
        """Another recipe."""
        from engine import recipe
        from tui.modals.ask import Ask
        from tui.sources.recipe_files import known

        modal = Ask(_("open a recipe"), "", known(), Complete(recipe.names, files=(".yaml", ".yml")))
        self.app.push_screen(modal, lambda name: self._open(name, []) if name else None)

    def action_save(self) -> None:
        """Write the recipe."""
        from tui.modals.ask import Ask

        if self._draft is None:
            return
        name = _recipe_name(self._draft.path)
        value = name if name.endswith((".yaml", ".yml")) else f"{name}.yaml"
        modal = Ask(_("save the recipe as"), value, suggester=Complete(lambda: (), files=(".yaml", ".yml")))
        self.app.push_screen(modal, lambda name: self._save(name) if name else None)

    def _save(self, name: str, *, replace: bool = False) -> None:
        draft = self._draft
        if draft is None:
            return
        target = Path(name if name.endswith((".yaml", ".yml")) else f"{name}.yaml").expanduser()

        def failed(error: FtuiError) -> None:
            if error.kind == "exists":
                question = _("{path} is there already. Replace it?").format(path=target)
                self.ftui.confirm(question, partial(self._save, name, replace=True))
            else:
                self.ftui.report(error)

        self.ftui.background(partial(draft.save, target, replace=replace), self._saved, failed=failed)

    def _saved(self, draft: Draft) -> None:
        self.notify(_("{path} written").format(path=draft.path), markup=False, timeout=3)
        if self.is_mounted:
            self._before.clear()  # drafts of the file as it was
            self._take(draft)

    # Probe

    def action_probe(self) -> None:
        """Train some real steps here, for the time and the memory of the plan; a second time stops them."""
        from tui.sources.probe import Probe

        draft = self._draft
        if self._probe is not None:
            self._probe.stop()
            return
        if draft is None or draft.server:
            return

        def say(text: str) -> None:
            self.app.call_from_thread(self._probing, probe, text)

        probe = self._probe = Probe(draft.path, draft.overrides(), self.ftui.workspace.root, say)
        self._probing(probe, _("probe: starting"))
        self.ftui.background(probe.run, lambda _none: self._probed(), failed=self._probed)
        self.refresh_bindings()

    def _probing(self, probe: Probe, text: str) -> None:
        if self.is_mounted and self._probe is probe:
            self.query_one(PlanView).probing(_("{what} (p stops it)").format(what=text))

    def _probed(self, error: FtuiError | None = None) -> None:
        probe, self._probe = self._probe, None
        if error is not None and probe is not None and not probe.stopped:
            self.ftui.report(error)
        if self.is_mounted:
            self.query_one(PlanView).probing("")
            self._answer_soon()

    def on_unmount(self) -> None:
        """Whoever leaves wants no answer any more."""
        if self._probe is not None:
            self._probe.stop()

    # Start

    def action_start(self) -> None:
        """Start the run, here."""
        draft = self._draft
        if draft is None or self._starting:
            return
        if draft.server:
            question = _("The plan is for {server}; a run starts on this machine. Start it here?")
            self.ftui.confirm(question.format(server=draft.server), partial(self._start, draft))
        else:
            self._start(draft)

    def _start(self, draft: Draft) -> None:
        self._starting = True
        workspace = self.ftui.workspace

        def start() -> RunFolder:
            from engine.run import launch

            return launch.start(workspace, draft.path, draft.overrides()).run

        self.ftui.background(start, self._started, failed=self._not_started, busy=_("starting …"))

    def _started(self, run: RunFolder) -> None:
        self._starting = False
        if self.app.screen is self:
            self.app.pop_screen()
        self.ftui.opened(run)

    def _not_started(self, error: FtuiError) -> None:
        self._starting = False
        self.ftui.report(error)
