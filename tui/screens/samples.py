"""What a run answers to fixed prompts, evaluation by evaluation: does it learn what it should?"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import Static

from engine.evaluate import samples
from engine.evaluate.samples import Prompt
from engine.evaluate.wording import marked
from engine.text import _, number, printable
from engine.workspace import RunFolder
from tui.keys import bindings
from tui.widgets.header_bar import HeaderBar
from tui.widgets.key_bar import KeyBar

if TYPE_CHECKING:
    from tui.app import FtuiApp

EVERY_S = 2.0


class SamplesScreen(Screen[None]):
    """The answers to one prompt, newest first, with the words that are new against the evaluation before."""

    CSS_PATH = "samples.tcss"
    BINDINGS: ClassVar = bindings("samples")
    AUTO_FOCUS = ""

    def __init__(self, run: RunFolder) -> None:
        super().__init__()
        self._run = run
        self._prompts: list[Prompt] = []
        self._at = 0
        self._stamp: tuple[int, int] | None = None

    @property
    def ftui(self) -> FtuiApp:
        """The app, by its own type."""
        return cast("FtuiApp", self.app)

    def compose(self) -> ComposeResult:
        """Which prompt, and the answers to it."""
        yield HeaderBar(ascii_only=self.ftui.ascii_only)
        yield Static(id="title")
        yield Static(id="prompt")
        yield VerticalScroll(Static(id="answers"), id="scroll", can_focus=False)
        yield KeyBar("samples", "app")

    def on_mount(self) -> None:
        """Read, and look for new ones now and then."""
        self.query_one(HeaderBar).show(self.ftui.runs)
        self._look()
        self.set_interval(EVERY_S, self._look)

    def _look(self) -> None:
        self.ftui.background(self._read, self._take)

    def _read(self) -> list[Prompt] | None:
        """The samples where the file has changed."""
        try:
            info = (self._run.path / samples.FILE).stat()
        except OSError:
            return [] if self._stamp is None else None
        stamp = (info.st_size, info.st_mtime_ns)
        if stamp == self._stamp:
            return None
        self._stamp = stamp
        return samples.read(self._run)

    def _take(self, found: list[Prompt] | None) -> None:
        if found is not None and self.is_mounted:
            self._prompts = found
            self._at = min(self._at, max(0, len(found) - 1))
            self._show()

    def _show(self) -> None:
        accent, muted = self.ftui.rich_color("accent"), self.ftui.rich_color("muted")
        title = Text(no_wrap=True, overflow="ellipsis")
        title.append(f" {_('SAMPLES')}  ", "bold").append(self._run.name, accent)
        text = Text()
        if not self._prompts:
            text.append(_("none yet: they are made at each evaluation while the run trains"), muted)
            self.query_one("#prompt", Static).update("")
        else:
            chosen = self._prompts[self._at]
            title.append(f"  {number(self._at + 1)}/{number(len(self._prompts))}")
            prompt = Text(printable(chosen.prompt))
            if chosen.reference:
                prompt.append("\n" + _("expected: {text}").format(text=printable(chosen.reference)), muted)
            self.query_one("#prompt", Static).update(prompt)
            before = dict(zip([step for step, _text in chosen.answers[1:]], chosen.answers, strict=False))
            for step, said in reversed(chosen.answers):
                text.append(_("step {step}").format(step=number(step)) + "\n", f"bold {accent}")
                older = before.get(step)
                parts = marked(printable(older[1]), printable(said))[1] if older else [(printable(said), False)]
                for piece, differs in parts:
                    text.append(piece, f"underline {self.ftui.rich_color('warning')}" if differs else "")
                text.append("\n\n")
        self.query_one("#title", Static).update(title)
        self.query_one("#answers", Static).update(text)

    def action_move(self, by: int) -> None:
        """Another prompt."""
        if self._prompts:
            self._at = (self._at + by) % len(self._prompts)
            self._show()
            self.query_one("#scroll", VerticalScroll).scroll_home(animate=False)

    def action_scroll(self, by: int) -> None:
        """Older and newer answers."""
        self.query_one("#scroll", VerticalScroll).scroll_relative(y=by, animate=False)

    def action_back(self) -> None:
        """Back to the run."""
        self.app.pop_screen()
