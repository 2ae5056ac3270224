"""Reading answers: two at a time, without knowing whose they are; one key is a vote."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, cast

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Horizontal, VerticalScroll
from textual.screen import Screen
from textual.widgets import Static

from engine.evaluate import gate, reading
from engine.evaluate.reading import Pair
from engine.evaluate.wording import marked
from engine.files import read_json
from engine.text import _, number, printable
from engine.workspace import RunFolder
from tui.keys import bindings
from tui.widgets.header_bar import HeaderBar
from tui.widgets.key_bar import KeyBar

if TYPE_CHECKING:
    from tui.app import FtuiApp


class ReadingScreen(Screen[None]):
    """Side by side, blind; the votes go into the report.

    Args:
        run: the run whose answers are read.
        folder: the evaluation; None takes the newest.
    """

    CSS_PATH = "reading.tcss"
    BINDINGS: ClassVar = bindings("reading")
    AUTO_FOCUS = ""
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide")]  # noqa: RUF012

    def __init__(self, run: RunFolder, folder: Path | None = None) -> None:
        super().__init__()
        self._run = run
        self._folder = folder
        self._pairs: list[Pair] = []
        self._votes: dict[str, str] = {}  # row -> who won
        self._notes: dict[str, str] = {}
        self._at = 0
        self._marks = True
        self._shown_names = False
        self._voted = False
        self._writing = threading.Lock()

    @property
    def ftui(self) -> FtuiApp:
        """The app, by its own type."""
        return cast("FtuiApp", self.app)

    def compose(self) -> ComposeResult:
        """Where we are, the prompt, the two answers, the score, the keys."""
        yield HeaderBar(ascii_only=self.ftui.ascii_only)
        yield Static(id="title")
        yield VerticalScroll(Static(id="prompt"), id="asked", can_focus=False)
        with Horizontal(id="answers"):
            for side in ("a", "b"):
                yield VerticalScroll(Static(id=side), id=f"side-{side}", can_focus=False)
        yield Static(id="score")
        yield Static(id="table")
        yield KeyBar("reading", "app")

    def on_mount(self) -> None:
        """Read the answers in a thread: there may be many."""
        self.query_one(HeaderBar).show(self.ftui.runs)
        self.query_one("#title", Static).update(Text(_("reading the answers")))
        self.ftui.background(self._load, self._loaded)

    def _load(self) -> tuple[Path | None, list[Pair], dict[str, dict[str, object]]]:
        folder = self._folder
        if folder is None:
            report = gate.last(self._run, None)
            folder = gate.folder_of(self._run) / str(report["label"]) if report is not None else None
        if folder is None:
            return None, [], {}
        return folder, reading.pairs(folder), reading.votes(folder)

    def _loaded(self, found: tuple[Path | None, list[Pair], dict[str, dict[str, object]]]) -> None:
        self._folder, self._pairs, votes = found
        self._votes = {row: str(line["won"]) for row, line in votes.items()}
        self._notes = {row: str(line.get("note") or "") for row, line in votes.items()}
        self._at = next((at for at, pair in enumerate(self._pairs) if pair.id not in self._votes), 0)
        self._show()

    @property
    def pair(self) -> Pair | None:
        """What is on the screen."""
        return self._pairs[self._at] if self._pairs else None

    def _show(self) -> None:
        pair = self.pair
        title = Text(no_wrap=True, overflow="ellipsis")
        title.append(f" {_('READING')}  ", "bold").append(self._run.name, self.ftui.rich_color("accent"))
        if pair is None:
            said = _("`ftui eval {run}` asks base and tuned model first").format(run=self._run.name)
            self.query_one("#title", Static).update(title)
            self.query_one("#prompt", Static).update(Text(said))
            return
        title.append(f"  {self._folder.name if self._folder else ''}  ")
        title.append(f"{number(self._at + 1)}/{number(len(self._pairs))}")
        title.append("   " + (_("names shown") if self._shown_names else _("names hidden")), self._muted)
        self.query_one("#title", Static).update(title)
        prompt = Text(printable(pair.prompt))
        if pair.reference:
            prompt.append("\n" + _("expected: {text}").format(text=printable(pair.reference)), self._muted)
        self.query_one("#prompt", Static).update(prompt)
        one, other = marked(printable(pair.a), printable(pair.b))
        for side, parts in (("a", one), ("b", other)):
            self.query_one(f"#{side}", Static).update(self._answer(side, parts, pair))
            self.query_one(f"#side-{side}", VerticalScroll).scroll_home(animate=False)
        self.query_one("#score", Static).update(self._score(pair))

    @property
    def _muted(self) -> str:
        return self.ftui.rich_color("muted")

    def _answer(self, side: str, parts: list[tuple[str, bool]], pair: Pair) -> Text:
        head = side.upper()
        if self._shown_names:
            head += "  " + (_("tuned") if (side == "a") == pair.tuned_is_a else _("base"))
        text = Text().append(head + "\n", f"bold {self.ftui.rich_color('accent')}")
        if not any(piece.strip() for piece, _differs in parts):
            return text.append(_("(nothing)"), self._muted)
        for piece, differs in parts:
            text.append(piece, f"underline {self.ftui.rich_color('warning')}" if differs and self._marks else "")
        return text

    def _score(self, pair: Pair) -> Text:
        text = Text(no_wrap=True, overflow="ellipsis")
        if self._votes:
            tally = reading.tally({row: {"won": won} for row, won in self._votes.items()})
            if self._voted or self._shown_names or len(self._votes) == len(self._pairs):
                text.append(" " + reading.text(tally))
            else:
                text.append(
                    " " + _("{n} of {total} voted").format(n=number(len(self._votes)), total=number(len(self._pairs)))
                )
        if won := self._votes.get(pair.id):
            words = {"same": _("alike"), "bad": _("both bad")}
            said = words.get(won) or ("A" if (won == "tuned") == pair.tuned_is_a else "B")
            text.append("   " + _("your vote: {vote}").format(vote=said), self.ftui.rich_color("success"))
        if note := self._notes.get(pair.id):
            text.append(f"   {printable(note)}", self._muted)
        return text

    # Keys

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Without answers there is nothing to vote on."""
        return bool(self._pairs) or None if action in ("vote", "move", "note", "marks", "names") else True

    def action_vote(self, choice: str) -> None:
        """Vote, and go to the next row without a vote."""
        pair = self.pair
        if pair is None or self._folder is None:
            return
        won = choice if choice in ("same", "bad") else "tuned" if (choice == "a") == pair.tuned_is_a else "base"
        self._votes[pair.id] = won
        self._keep(pair, choice)
        rest = [*range(self._at + 1, len(self._pairs)), *range(self._at)]
        following = next((at for at in rest if self._pairs[at].id not in self._votes), None)
        if following is None:
            self.notify(_("all rows are voted on; the report has the result"), markup=False)
        else:
            self._at = following
        self._show()

    def _keep(self, pair: Pair, choice: str) -> None:
        folder, note = self._folder, self._notes.get(pair.id, "")
        assert folder is not None
        self._voted = self._voted or len(self._votes) == len(self._pairs)

        def write() -> None:
            with self._writing:
                reading.vote(folder, pair, choice, note)

        self.ftui.background(write)

    def action_move(self, by: int) -> None:
        """Another row."""
        if self._pairs:
            self._at = (self._at + by) % len(self._pairs)
            self._show()

    def action_note(self) -> None:
        """A note on this row, kept with its vote."""
        from tui.modals.ask import Ask

        pair = self.pair
        if pair is None:
            return

        def noted(text: str | None) -> None:
            if text is None:
                return
            self._notes[pair.id] = text
            won = self._votes.get(pair.id)
            if won is not None:
                choice = won if won in ("same", "bad") else "a" if (won == "tuned") == pair.tuned_is_a else "b"
                self._keep(pair, choice)
            self._show()

        self.app.push_screen(Ask(_("note"), self._notes.get(pair.id, "")), noted)

    def action_marks(self) -> None:
        """Mark the words that differ, or not."""
        self._marks = not self._marks
        self._show()

    def action_names(self) -> None:
        """Whose answers they are; a vote after that is not blind."""
        self._shown_names = not self._shown_names
        self._show()

    def action_results(self) -> None:
        """The metrics and the gate's verdict instead of the answers, and back."""
        self.toggle_class("-table")
        if self.has_class("-table"):
            folder = self._folder
            self.ftui.background(lambda: read_json(folder / "report.json") if folder else None, self._show_table)

    def _show_table(self, document: object) -> None:
        from engine.evaluate.report import words

        text = Text(no_wrap=True, overflow="ellipsis")
        if not isinstance(document, dict) or not document.get("metrics"):
            text.append(_("no metrics yet"))
        else:
            text.append(words.headline(document) + "\n\n", "bold")
            rows = [(_("metric"), _("base"), _("tuned"), _("95 % interval"), "")]
            tones = ["muted"]
            for metric in document["metrics"]:
                name, delta = metric["name"], metric["delta"]
                base, tuned = (words.figure(name, metric[role]["value"]) for role in ("base", "tuned"))
                unclear = delta["verdict"] == "not_enough_rows"  # in full it is wider than the terminal
                verdict = _("unclear") if unclear else words.verdict(delta)
                rows.append((words.label(name), base, tuned, words.interval(name, delta, signed=True), verdict))
                tones.append({"better": "success", "worse": "error"}.get(delta["verdict"], "muted"))
            label, *widths = (max(len(row[column]) for row in rows) for column in range(4))
            for index, (row, tone) in enumerate(zip(rows, tones, strict=True)):
                text.append(f"{row[0]:<{label}}", "" if index else self._muted)
                for column, style in enumerate(("", "bold", self._muted) if index else (self._muted,) * 3):
                    text.append(f"  {row[column + 1]:>{widths[column]}}", style)
                text.append(f"  {row[4]}\n", self.ftui.rich_color(tone))
            for item in document.get("gates") or []:
                tone = self.ftui.rich_color("success" if item["passed"] else "error")
                text.append("\n" + words.gate_line(item), tone)
        self.query_one("#table", Static).update(text)

    def action_scroll(self, by: int) -> None:
        """Both answers, up or down."""
        for side in ("a", "b"):
            self.query_one(f"#side-{side}", VerticalScroll).scroll_relative(y=by, animate=False)

    def action_back(self) -> None:
        """Back; the report gets the votes."""
        folder = self._folder
        if folder is not None and self._votes:
            from engine.evaluate import report

            def write() -> None:
                with self._writing:
                    report.refresh(folder)

            self.ftui.background(write)
        self.app.pop_screen()
