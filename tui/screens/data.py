"""Training data, row by row as the model sees it; what a check finds in all of it; what follows for the recipe."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from textual import on, work
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.screen import Screen

from engine.data.examine import Found, Outcome
from engine.data.study import Picture, Study, Subject
from engine.errors import FtuiError
from engine.text import _, number
from tui.keys import bindings
from tui.widgets.cells import Ink
from tui.widgets.data_facts import DataFoot, DataTitle, Place
from tui.widgets.data_findings import DataFindings
from tui.widgets.data_lengths import DataLengths
from tui.widgets.data_row import DataRow
from tui.widgets.header_bar import HeaderBar
from tui.widgets.key_bar import KeyBar

if TYPE_CHECKING:
    from tui.app import FtuiApp

Changes = dict[str, Any]
TELL_EVERY_S = 0.5


class Learned(Message):
    """Something about the data is known now; `study` says of which data."""

    def __init__(self, study: Study, what: str, value: Any = None) -> None:
        super().__init__()
        self.study, self.what, self.value = study, what, value


class DataScreen(Screen["Changes | None"]):
    """Looks at data. Dismissed with changes to a recipe, or None.

    Args:
        names: files, folders or whatever else `ftui data check` reads.
        model: whose template and tokens are shown.
        max_length: where rows are cut.
        columns: our names of columns to those of the data.
    """

    CSS_PATH = "data.tcss"
    BINDINGS: ClassVar = bindings("data")
    AUTO_FOCUS = ""
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide"), (160, "-broad")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-low"), (34, "-tall")]  # noqa: RUF012

    def __init__(
        self,
        names: tuple[str, ...],
        *,
        model: str | None = None,
        max_length: int | None = None,
        columns: dict[str, str] | None = None,
    ) -> None:
        super().__init__()
        self._subject = Subject(names, model, max_length, columns or {})
        self._study: Study | None = None
        self._picture: Picture | None = None
        self._outcome: Outcome | None = None
        self._number = 0  # of the row that is wanted
        self._at = 0  # among the rows of the filter
        self._filter: Found | None = None
        self._changes: Changes = {}
        self._busy = False

    @property
    def ftui(self) -> FtuiApp:
        """The app, by its own type."""
        return cast("FtuiApp", self.app)

    @property
    def outcome(self) -> Outcome | None:
        """What the check said; None while it goes on."""
        return self._outcome

    @property
    def picture(self) -> Picture | None:
        """The row on the screen."""
        return self._picture

    def compose(self) -> ComposeResult:
        """What runs; the row's name; findings and lengths beside the row; what follows; the keys."""
        yield HeaderBar(ascii_only=self.ftui.ascii_only)
        yield DataTitle()
        with Horizontal(id="columns"):
            with Vertical(id="left"):
                yield DataFindings()
                yield DataLengths()
            yield DataRow()
        yield DataFoot()
        yield KeyBar("data", "app")

    def on_mount(self) -> None:
        """Begin to read."""
        self.query_one(HeaderBar).show(self.ftui.runs)
        self._begin(self._subject)

    def on_unmount(self) -> None:
        """End what still reads."""
        if self._study is not None:
            self._study.close()

    # Reading: each step in a thread, and what it learned as a message

    def _begin(self, subject: Subject, *, number_: int = 0) -> None:
        if self._study is not None:
            self._study.close()
        same = subject.names == self._subject.names
        self._subject, self._study = subject, Study(subject, self.ftui.workspace.root)
        self._number, self._filter, self._outcome = number_, None, None
        if not same:
            self._picture = None
        self.query_one(DataFindings).show(None, 0, _("reading …"))
        self.query_one(DataFindings).filter = None
        self.query_one(DataLengths).show(None, subject.max_length)
        self.query_one(DataFoot).show(None)
        self.query_one(DataFoot).say("")
        self.query_one(DataRow).show(self._picture, _("reading …"))
        self._title()
        self._read(self._study)

    @work(thread=True, group="data")
    def _read(self, study: Study) -> None:
        """First the first row, then the model, then how many rows there are, then all that is wrong with them."""
        steps: tuple[tuple[str, Callable[[], Any]], ...] = (
            ("first", study.open), ("model", study.load_model), ("count", study.count),
            ("outcome", partial(study.examine, self._teller(study))),
        )  # fmt: skip
        for what, step in steps:
            try:
                self.post_message(Learned(study, what, step()))
            except Exception as error:  # noqa: BLE001 - what one file holds does not end the app
                self.post_message(Learned(study, "error", (what, self.ftui.as_ours(error))))
                if what in ("first", "count"):
                    return

    def _teller(self, study: Study) -> Callable[[int], None]:
        """Says now and then how many rows are checked."""
        told = time.monotonic()

        def tell(rows: int) -> None:
            nonlocal told
            if time.monotonic() - told > TELL_EVERY_S:
                told = time.monotonic()
                self.post_message(Learned(study, "checked", rows))

        return tell

    @on(Learned)
    def _learned(self, message: Learned) -> None:
        if message.study is not self._study or self not in self.app.screen_stack:
            return
        value = message.value
        if message.what == "first":
            if not self._number:
                self._show(value)
            self.query_one(DataFindings).show(None, 0, _("checking …"))
        elif message.what in ("model", "count"):
            if message.study.indexed:
                self._go(min(self._number, len(message.study) - 1))
            elif self._picture is not None and message.study.model is not None:
                self._again(message.study, self._picture)
        elif message.what == "checked":
            self.query_one(DataFindings).show(None, 0, _("checked {n} …").format(n=number(value)))
            return
        elif message.what == "row":
            self._show(value)
        elif message.what == "outcome":
            self._concluded(value)
        else:
            self._failed(*value)
        self._title()
        self.refresh_bindings()

    def _concluded(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self.query_one(DataFindings).show(outcome.found, outcome.rows)
        self.query_one(DataLengths).show(outcome.lengths, self._subject.max_length)
        self.query_one(DataFoot).show(outcome)
        if self._subject.model is None:
            self.query_one(DataFoot).say(_("m: choose a model: rows are then shown through its template, in tokens"))

    def _failed(self, what: str, error: FtuiError) -> None:
        if error.kind == "stopped":
            return
        said = error.what if not error.fix else f"{error.what}: {error.fix}"
        self.query_one(DataFoot).say(said, Ink.ERROR)
        if what in ("first", "count", "outcome"):
            self.query_one(DataFindings).show(None, 0, _("not read"))
        if what == "first":
            self._picture = None
            self.query_one(DataRow).show(None, error.what)

    @work(thread=True, exclusive=True, group="again")
    def _again(self, study: Study, picture: Picture) -> None:
        """The first row once more, now that the model is there."""
        seen = study.picture(picture.number, picture.file, picture.line, picture.value)
        self.post_message(Learned(study, "row", seen))

    # The row

    def _go(self, number_: int) -> None:
        study = self._study
        if study is None or not study.indexed:
            return
        self._number = number_
        self._title()
        self._fetch(study, number_)

    @work(thread=True, exclusive=True, group="row")
    def _fetch(self, study: Study, number_: int) -> None:
        try:
            self.post_message(Learned(study, "row", study.row(number_)))
        except Exception as error:  # noqa: BLE001 - as above
            self.post_message(Learned(study, "error", ("row", self.ftui.as_ours(error))))

    def _show(self, picture: Picture) -> None:
        if picture.number != self._number:
            return  # an older wish
        self._picture = picture
        self.query_one(DataRow).show(picture)

    def _title(self) -> None:
        names = ", ".join(_near(name) for name in self._subject.names)
        study, place = self._study, None
        if study is not None:
            rows = len(study) if study.indexed else None
            of = len(self._filter.rows) if self._filter else 0
            place = Place(self._number, rows, self._filter, self._at, of)
        self.query_one(DataTitle).show(names, self._picture, place)

    # Keys

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """What cannot be done now has no key."""
        if action in ("step", "go"):
            return (self._study is not None and self._study.indexed and len(self._study) > 1) or None
        if action in ("drop", "copy"):
            return self._picture is not None or None
        if action == "plan":
            return (self._outcome is not None and self._outcome.advice is not None) or None
        if action in ("filter", "prepare", "select"):
            return self._outcome is not None or None
        return True

    def action_step(self, by: int) -> None:
        """The next row of the filter, or the one before."""
        if self._study is None or not self._study.indexed:
            return
        if self._filter is None:
            self._go(min(max(0, self._number + by), len(self._study) - 1))
            return
        self._at = min(max(0, self._at + by), len(self._filter.rows) - 1)
        self._go(self._study.number_of(*self._filter.rows[self._at]))

    def action_select(self, by: int) -> None:
        """Another finding."""
        self.query_one(DataFindings).move(by)

    @on(DataFindings.Chosen)
    def action_filter(self) -> None:
        """Only the rows of a finding, or all again."""
        if self._outcome is None or self._study is None:
            return
        selected = self.query_one(DataFindings).selected
        if selected is not None and not selected.rows:
            self.notify(selected.detail, markup=False, timeout=6)
            return
        self._filter = self.query_one(DataFindings).choose()
        if self._filter is not None:
            self._at = 0
            self.query_one(DataFoot).say(self._filter.detail)
            self._go(self._study.number_of(*self._filter.rows[0]))
        else:
            self.query_one(DataFoot).say("")
            self._title()

    def action_scroll_row(self, by: int) -> None:
        """Through a long row, a page at a time."""
        row = self.query_one(DataRow)
        row.scroll(by * row.page)

    def action_marks(self) -> None:
        """Marks beside the colors."""
        self.query_one(DataRow).toggle_marks()

    def action_copy(self) -> None:
        """The row as text."""
        if self._picture is not None:
            self.ftui.copy("".join(text for text, _state in self._picture.shown.parts), _("the row"))

    def action_drop(self) -> None:
        """Drop the row, or take it back."""
        study, picture = self._study, self._picture
        if study is None or picture is None:
            return

        def toggled(seen: Picture) -> None:
            self._show(seen)
            self._title()
            said = _("row {n} is dropped: training leaves it out") if seen.dropped else _("row {n} is back")
            self.notify(said.format(n=number(seen.number + 1)), markup=False)

        self.ftui.background(partial(study.toggle, picture), toggled)

    def action_go(self) -> None:
        """A row by its number."""
        self._ask(_("go to row"), "", self._went)

    def _went(self, text: str) -> None:
        value = _whole(text)
        if value is None or self._study is None or not 1 <= value <= len(self._study):
            self.notify(_("there is no row {row}").format(row=text), markup=False)
            return
        self._filter = self.query_one(DataFindings).filter = None
        self._go(value - 1)

    def action_max_length(self) -> None:
        """Where rows are cut."""
        advice = self._outcome.advice if self._outcome is not None else None
        value = self._subject.max_length or (advice.max_length if advice is not None else "")
        self._ask(_("max_length in tokens"), str(value), self._cut)

    def _cut(self, text: str) -> None:
        value = _whole(text)
        if value is None or value < 1:
            self.notify(_("{text} is no number of tokens").format(text=text), markup=False)
            return
        self._changes["max_length"] = value
        self._begin(replace(self._subject, max_length=value), number_=self._number)

    def action_model(self) -> None:
        """Another model."""
        self._ask(_("model: a folder, or a name of the hub that is on this machine"), self._subject.model or "",
                  lambda name: self._begin(replace(self._subject, model=name), number_=self._number))  # fmt: skip

    def action_open(self) -> None:
        """Other data."""
        self._ask(
            _("open data"), self._subject.names[0], lambda name: self._begin(replace(self._subject, names=(name,)))
        )

    def _ask(self, title: str, value: str, then: Callable[[str], Any]) -> None:
        from tui.modals.ask import Ask

        self.app.push_screen(Ask(title, value), lambda text: then(text) if text else None)

    def action_back(self) -> None:
        """Back, without changes."""
        self.dismiss(None)

    def action_plan(self) -> None:
        """Take what the lengths suggest into the planner; a max_length given by hand stands."""
        if self._outcome is not None and self._outcome.advice is not None:
            paths = {"dataset_path": self._subject.names[0], **self._changes}
            model = {"model_name_or_path": self._subject.model} if self._subject.model else {}
            self.dismiss({**self._outcome.advice.changes(), **model, **paths})

    def action_prepare(self) -> None:
        """Write clean data beside where one stands, then look at that."""
        if self._busy or self._outcome is None:
            return
        stem = Path(self._subject.names[0].rstrip("/")).name.partition(".")[0] or "data"
        self._ask(_("write clean data into a new folder"), f"{stem}-data", self._prepare)

    def _prepare(self, folder: str) -> None:
        from engine.data.prepare import Wishes, prepare
        from engine.files import user_path

        study = self._study
        if study is None:
            return
        out = user_path(folder).absolute()
        wishes = Wishes(list(self._subject.names), columns=self._subject.columns, dropped=study.dropped)
        self._busy = True

        def done(document: dict[str, Any]) -> None:
            self._busy = False
            rows = document["rows"]
            self._changes["eval_dataset_path"] = str(out / "eval.jsonl") if rows["eval"] else None
            said = _("{train} rows to train on, {eval} for evaluation; {path}/report.md says it all")
            self.notify(said.format(train=number(rows["train"]), eval=number(rows["eval"]), path=_near(str(out))),
                        markup=False, timeout=8)  # fmt: skip
            self._begin(replace(self._subject, names=(str(out / "train.jsonl"),), columns={}))

        def failed(error: FtuiError) -> None:
            self._busy = False
            self.ftui.report(error)

        self.ftui.background(partial(prepare, wishes, out), done, failed=failed, busy=_("preparing …"))


def _whole(text: str) -> int | None:
    digits = text.replace(",", "").replace(" ", "").replace("_", "")
    return int(digits) if digits.isdecimal() and len(digits) < 16 else None


def _near(name: str) -> str:
    """A path as it is shortest from here."""
    if "://" in name or not name.startswith("/"):
        return name
    from tui.paths import short

    path = Path(name)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else short(path)
