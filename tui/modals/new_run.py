"""A new run from a recipe: choose it, say which model and data, see what the checks find, start."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from rich.text import Text
from textual import on, work
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.timer import Timer
from textual.widgets import Input, Label, OptionList, Static
from textual.widgets.option_list import Option

from engine.errors import FtuiError, UsageError
from engine.findings import Finding
from engine.text import _, ngettext, number
from engine.workspace import RunFolder, Workspace
from tui.keys import bindings
from tui.modals.base import Modal
from tui.paths import short
from tui.sources.recipe_files import known
from tui.widgets.key_bar import KeyBar

if TYPE_CHECKING:
    from rich.console import Console
    from textual.geometry import Size

    from tui.app import FtuiApp

CHECK_AFTER_S = 0.25  # typing is echoed first, the check follows when it pauses
ORDER = {"error": 0, "warning": 1, "note": 2}
KEYS = {"model": "model_name_or_path", "dataset": "dataset_path"}


def _here() -> str:
    try:
        return short(Path.cwd(), 50)
    except OSError:  # it was removed
        return _("a folder that is gone")


def fit(sentences: list[Text], console: Console, size: Size, muted: str) -> Text:
    """The first sentences in the given room; one that is cut ends in a mark, those left out are counted."""
    lines: list[Text] = []
    for index, sentence in enumerate(sentences):
        wrapped = list(sentence.wrap(console, max(1, size.width)))
        rest = len(sentences) - index - 1
        room = size.height - len(lines) - bool(rest)
        if len(wrapped) > room and room < 2 and rest:
            lines.append(_more(rest + 1, muted))
            break
        if len(wrapped) > room:
            lines += wrapped[: max(1, room)]
            lines[-1].truncate(max(1, size.width - 1), overflow="crop")
            lines[-1].append("…")
            if rest:
                lines.append(_more(rest, muted))
            break
        lines += wrapped
    return Text("\n").join(lines)


def _more(count: int, style: str) -> Text:
    return Text(ngettext("and {n} more", "and {n} more", count).format(n=number(count)), style)


class NewRun(Modal[RunFolder | None]):
    """Dismissed with the run that was started, or None."""

    BINDINGS: ClassVar = bindings("new_run")
    AUTO_FOCUS = "#recipe"

    class Checked(Message):
        """What a check of the form's present content found."""

        def __init__(self, findings: list[Finding], error: FtuiError | None, recipe: Any, edits: int) -> None:
            super().__init__()
            self.edits = edits
            self.findings = findings
            self.error = error
            self.recipe = recipe

    def __init__(self, workspace: Workspace) -> None:
        super().__init__()
        self.workspace = workspace
        self._recipes = known()
        self._timer: Timer | None = None
        self._starting = False
        self._edits = 0
        self._refused = -1  # after how many edits a start was refused: its reasons stand until the next one

    @property
    def ftui(self) -> FtuiApp:
        """The app, by its own type."""
        return cast("FtuiApp", self.app)

    def compose(self) -> ComposeResult:
        """The form."""
        panel = Vertical(classes="panel")
        panel.border_title = _("new run")
        with panel:
            # Selected by the focus: what is typed takes its place.
            first = self._recipes[0] if self._recipes else ""
            yield from self._field("recipe", _("recipe"), _("a name below, or the path of a file"), first)
            recipes = OptionList(*(Option(name, id=f"r{i}") for i, name in enumerate(self._recipes)), id="recipes")
            recipes.can_focus = False
            yield recipes
            yield Static(_("./ is {folder}").format(folder=_here()), id="folder", markup=False)
            yield from self._field("model", _("model"), _("e.g. {example}").format(example="/models/Qwen3-8B"))
            yield from self._field("dataset", _("dataset"), _("e.g. {example}").format(example="./train.jsonl"))
            yield from self._field("name", _("name"), _("empty: the recipe's name and a number"))
            example = "max_steps=500 learning_rate=1e-4"
            yield from self._field("options", _("options"), _("e.g. {example}").format(example=example))
            yield Static(id="findings")
            yield KeyBar("new_run")

    def _field(self, name: str, label: str, placeholder: str = "", value: str = "") -> ComposeResult:
        with Horizontal(classes="row"):
            yield Label(label)
            field = Input(value, placeholder=placeholder, id=name, compact=True)
            field.cursor_blink = False
            yield field

    # The form

    def _value(self, name: str) -> str:
        return self.query_one(f"#{name}", Input).value.strip()

    def _overrides(self) -> list[str]:
        """What stands in the form beside the recipe, as `key=value`.

        Raises:
            UsageError: the options cannot be read.
        """
        given = [f"{key}={self._value(name)}" for name, key in KEYS.items() if self._value(name)]
        try:
            options = shlex.split(self._value("options"))
        except ValueError as error:
            raise UsageError(
                _("the options cannot be read: a quote is not closed"), fix=_("write key=value key='two words'")
            ) from error
        return given + options

    @on(Input.Changed)
    def _changed(self, event: Input.Changed) -> None:
        if event.input.id == "recipe":
            self._highlight(event.value.strip())
        self._edits += 1
        if event.input.id != "name":
            if self._timer is not None:
                self._timer.stop()
            self._timer = self.set_timer(CHECK_AFTER_S, self._check)

    def _highlight(self, name: str) -> None:
        known = self.query_one("#recipes", OptionList)
        known.highlighted = self._recipes.index(name) if name in self._recipes else None

    @on(OptionList.OptionSelected)
    def _chosen(self, event: OptionList.OptionSelected) -> None:
        self.query_one("#recipe", Input).value = self._recipes[event.option_index]

    def action_step(self, by: int) -> None:
        """In the recipe field another recipe, elsewhere another field."""
        focused = self.focused
        if focused is None or focused.id != "recipe":
            self.focus_previous(Input) if by < 0 else self.focus_next(Input)
            return
        if not self._recipes:
            return
        here = self._value("recipe")
        index = self._recipes.index(here) + by if here in self._recipes else 0
        field = self.query_one("#recipe", Input)
        field.value = self._recipes[index % len(self._recipes)]
        field.cursor_position = len(field.value)

    # The check

    def _check(self) -> None:
        try:
            self._check_in_thread(self._value("recipe"), self._overrides(), self._edits)
        except UsageError as error:
            self._show(self.Checked([], error, None, self._edits))

    @work(thread=True, exclusive=True, group="check")
    def _check_in_thread(self, name: str, overrides: list[str], edits: int) -> None:
        from engine import recipe

        if not name:
            error = UsageError(_("no recipe yet"), fix=_("↑ and ↓ choose one"))
            self.post_message(self.Checked([], error, None, edits))
            return
        try:
            loaded = recipe.load(recipe.find(name), overrides)
            findings = recipe.check(loaded)
        except Exception as error:  # noqa: BLE001 - whatever is typed here, the form stays
            self.post_message(self.Checked([], self.ftui.as_ours(error), None, edits))
        else:
            self.post_message(self.Checked(findings, None, loaded.recipe, edits))

    @on(Checked)
    def _show(self, checked: Checked) -> None:
        """The findings; as placeholders, what the recipe says itself."""
        if self._starting:
            return
        if checked.recipe is not None:
            for name, key in KEYS.items():
                own = getattr(checked.recipe, key, None)
                said = _("{value}, as the recipe says").format(value=own) if own else _("the recipe names none")
                self.query_one(f"#{name}", Input).placeholder = said
        if checked.edits > self._refused:
            self._report(checked.findings, checked.error)

    def _report(self, findings: list[Finding], error: FtuiError | None, *, refused: bool = False) -> None:
        """As many findings as there is room for, the worst first, and how many more there are."""
        place = self.query_one("#findings", Static)
        color = self.ftui.rich_color
        sentences = [self._sentence(finding) for finding in sorted(findings, key=lambda found: ORDER[found.level])]
        if error is not None and not sentences:
            sentences = [self._colored("error", error.what, error.fix)]
        if error is None and not sentences:
            sentences = [Text(_("the checks found nothing wrong"), color("success"))]
        if refused:
            sentences.insert(0, Text(_("not started:"), f"bold {color('error')}"))
        place.update(fit(sentences, self.app.console, place.size, color("muted")), layout=False)

    def _sentence(self, finding: Finding) -> Text:
        line = _("line {n}: ").format(n=number(finding.lines[0])) if finding.lines else ""
        return self._colored(finding.level, line + (finding.detail or finding.kind), finding.fix)

    def _colored(self, level: str, what: str, fix: str | None) -> Text:
        text = Text(what, self.ftui.rich_color({"error": "error", "warning": "warning"}.get(level, "muted")))
        return text.append(" · " + fix, self.ftui.rich_color("foreground")) if fix else text

    # Start

    @on(Input.Submitted)
    def action_start(self) -> None:
        """Start the run; an error is shown where the findings stand."""
        if self._starting:
            return
        try:
            name, overrides, recipe = self._value("name") or None, self._overrides(), self._value("recipe")
        except UsageError as error:
            self._failed(error)
            return
        if not recipe:
            self._check()
            return
        self._starting = True
        self.query_one("#findings", Static).update(_("starting …"), layout=False)
        workspace = self.workspace

        def start() -> RunFolder:
            from engine.run import launch

            return launch.start(workspace, recipe, overrides, name=name).run

        self.ftui.background(start, self.dismiss, failed=self._failed)

    def action_plan(self) -> None:
        """To the planner, with what stands in the form."""
        if self._starting:
            return
        try:
            overrides = self._overrides()
        except UsageError as error:
            self._failed(error)
            return
        recipe, ftui = self._value("recipe") or None, self.ftui
        self.dismiss(None)
        ftui.call_later(ftui.open_planner, recipe, overrides)

    def _failed(self, error: FtuiError) -> None:
        self._starting = False
        if self.is_mounted:
            self._refused = self._edits
            self._report(list(getattr(error, "findings", [])), error, refused=True)

    def action_cancel(self) -> None:
        """Close without a run."""
        if not self._starting:
            self.dismiss(None)
