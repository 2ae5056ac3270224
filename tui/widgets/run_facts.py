"""The lines of the run screen: what it is and what is at risk, its figures, and how it ended."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.geometry import Size

from engine.text import _, duration, money
from tui import risk
from tui.sources.lease_source import LeaseLine
from tui.state.snapshot import Plan, PostMortem, RunSnapshot
from tui.widgets.cells import Cells, CellWidget, Ink
from tui.widgets.figures import UNKNOWN, fixed, loss, percent, small, whole
from tui.widgets.right_side import follow_lease, put_right_side
from tui.widgets.run_table import state_word

if TYPE_CHECKING:
    from tui.sources.run_listing import Price

LINES_A_PART = 3
FIXES = 3
STATE_INK = {
    "queued": Ink.MUTED,
    "starting": Ink.ACCENT,
    "running": Ink.ACCENT,
    "saving": Ink.ACCENT,
    "stopped": Ink.WARNING,
    "done": Ink.GOOD,
    "failed": Ink.ERROR,
    "lost": Ink.ERROR,
}


def phase_word(phase: str) -> str:
    """A phase in the user's language; the usual one needs no word."""
    words = {"prepare": _("preparing data"), "load": _("loading the model"), "evaluate": _("evaluating")}
    return words.get(phase, "")


class RunHeader(CellWidget):
    """Which run, its state and step; on the right what would be lost if it ended now."""

    DEFAULT_CSS = """
    RunHeader { dock: top; height: 1; background: $panel; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._snapshot = RunSnapshot()

    def on_mount(self) -> None:
        """Follow the lease."""
        follow_lease(self)

    @property
    def lease(self) -> LeaseLine:
        """What the app knows of the lease."""
        return getattr(self.app, "lease", None) or LeaseLine()

    def show(self, snapshot: RunSnapshot) -> None:
        """Draw this state of the run."""
        self._snapshot = snapshot
        self.repaint()

    def paint(self, cells: Cells) -> None:
        """The state is never cut off: the name gives way, then the right side goes."""
        snapshot = self._snapshot
        ink = STATE_INK.get(snapshot.state, Ink.PLAIN)
        state = f"{self.glyphs.state(snapshot.state)} {state_word(snapshot.state)}"
        step = whole(snapshot.step) if snapshot.step or snapshot.max_steps else ""
        if snapshot.max_steps:
            step += f"/{whole(snapshot.max_steps)}"
        x = cells.put(1, 0, "ftui", Ink.ACCENT) + 2
        x = cells.put_text(x, 0, snapshot.name, Ink.STRONG, end=cells.width - len(state) - len(step) - 3) + 1
        x = cells.put(x, 0, state, ink) + 1
        x = cells.put(x, 0, step)
        more = [phase_word(snapshot.phase)] if snapshot.live else []
        if snapshot.attempt > 1:
            more.append(_("attempt {n}").format(n=whole(snapshot.attempt)))
        if snapshot.loading is not None:
            more.append(_("reading {share}").format(share=percent(snapshot.loading)))
        texts, risk_ink = at_risk(snapshot)
        right = put_right_side(cells, x, texts, risk_ink, self.lease)
        text = f" {self.glyphs.dot} ".join(part for part in more if part)
        if text and x + len(text) + 4 < right:
            cells.put(x + 2, 0, text, Ink.MUTED)


def at_risk(snapshot: RunSnapshot) -> tuple[list[str], Ink]:
    """What would be lost if the run died now, longest wording first, and how loud; nothing once it has ended."""
    if not snapshot.live or not snapshot.step:
        return [], Ink.MUTED
    texts = risk.sentences(snapshot.safe_step, snapshot.at_risk_steps or 0, snapshot.at_risk_seconds)
    return texts, Ink.WARNING if snapshot.safe_step is None else Ink.MUTED


@dataclass(frozen=True)
class _Field:
    label: str
    value: str
    width: int
    rank: float  # the highest goes first where the terminal is narrow
    bad: bool = False
    planned: str = ""


class RunNumbers(CellWidget):
    """The figures in fixed columns under their names, so that nothing jumps; below, what the plan said."""

    DEFAULT_CSS = """
    RunNumbers { height: 2; }
    RunNumbers.-planned { height: 3; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._snapshot = RunSnapshot()
        self.price: Price | None = None

    def show(self, snapshot: RunSnapshot) -> None:
        """Draw the figures of this state of the run."""
        self._snapshot = snapshot
        plan = snapshot.plan
        self.set_class(plan is not None and (plan.tokens_per_s or plan.seconds) is not None, "-planned")
        self.repaint()

    def fields(self) -> list[_Field]:
        """All figures, in their order."""
        snapshot, numbers = self._snapshot, self._snapshot.numbers
        seconds = None if numbers.step_time_s is None else _("{s} s").format(s=fixed(numbers.step_time_s, 2))
        eta = UNKNOWN if snapshot.eta_s is None else duration(snapshot.eta_s)
        elapsed = UNKNOWN if snapshot.elapsed_s is None else duration(snapshot.elapsed_s)
        steps = whole(snapshot.step) + (f"/{whole(snapshot.max_steps)}" if snapshot.max_steps else "")
        plan = snapshot.plan or Plan()
        rate = "" if plan.tokens_per_s is None else whole(plan.tokens_per_s)
        fields = [
            _Field(_("step"), steps, max(13, len(steps)), 0),
            _Field(_("loss"), loss(numbers.loss), 7, 1, bad=numbers.loss is not None and numbers.loss != numbers.loss),
            _Field(_("eval"), loss(numbers.eval_loss), 7, 4),
            _Field(_("tok/s"), whole(numbers.tokens_per_s), 9, 3, planned=rate),
            _Field(_("MFU"), percent(numbers.mfu), 5, 7),
            _Field(_("step time"), seconds or UNKNOWN, 9, 6),
            _Field(_("grad"), fixed(numbers.grad_norm, 2), 7, 8),
            _Field(_("lr"), small(numbers.learning_rate), 8, 9),
            _Field(_("epoch"), fixed(numbers.epoch, 2), 6, 10),
            _Field(_("elapsed"), elapsed, 9, 11),
            _Field(_("ETA"), eta, 9, 2),
        ]
        if plan.seconds is not None:
            fields.append(_Field(_("total"), self._total(), 9, 2.5, planned=duration(plan.seconds)))
        if self.price is not None:
            planned = "" if plan.seconds is None else money(self.price.of(plan.seconds / 3600), self.price.currency)
            fields.append(_Field(_("cost"), self._cost(self.price), 10, 5, planned=planned))
        return fields

    def _total(self) -> str:
        """How long the whole run takes, as it goes now; what it took when it is done."""
        elapsed, eta = self._snapshot.elapsed_s, self._snapshot.eta_s
        if elapsed is None or (eta is None and self._snapshot.state != "done"):
            return UNKNOWN
        return duration(elapsed + (eta or 0.0))

    def _cost(self, price: Price) -> str:
        if self._snapshot.elapsed_s is None:
            return UNKNOWN
        return money(price.of(self._snapshot.elapsed_s / 3600), price.currency)

    def paint(self, cells: Cells) -> None:
        """Names above, figures below; columns are dropped from the least telling one on."""
        fields = self.fields()
        gap = 2
        while len(fields) > 1 and sum(f.width + gap for f in fields) > cells.width:
            fields.remove(max(fields, key=lambda f: f.rank))
        spare = cells.width - sum(f.width + gap for f in fields)
        gap += min(3, max(0, spare // max(1, len(fields))))
        x = 1 - gap
        for index, field in enumerate(fields):
            x += field.width + gap
            if index == 0:
                x = 1 + len(field.value) if cells.width < 40 else 1 + field.width
            cells.put_right(x, 0, field.label, Ink.MUTED)
            cells.put_right(x, 1, field.value, Ink.ERROR if field.bad else Ink.STRONG)
            cells.put_right(x, 2, field.planned, Ink.MUTED)
        if cells.height > 2:
            cells.put(1, 2, _("planned"), Ink.MUTED)

    def text(self) -> str:
        """The figures as one line, for the clipboard."""
        return "  ".join(f"{field.label} {field.value}" for field in self.fields())


class RunNotice(CellWidget):
    """How a run ended: the error and its fix, and the key that goes on from here. Nothing while it lives."""

    DEFAULT_CSS = """
    RunNotice { height: auto; display: none; }
    RunNotice.-shown { display: block; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._snapshot = RunSnapshot()

    def show(self, snapshot: RunSnapshot) -> None:
        """Say how the run of this snapshot ended."""
        before, self._snapshot = self.message(self._snapshot), snapshot
        now = self.message(snapshot)
        if now == before and self.has_class("-shown") == bool(now):
            return
        self.set_class(bool(now), "-shown")
        self.refresh(layout=True)
        self.repaint()

    def message(self, snapshot: RunSnapshot) -> list[tuple[str, str, Ink]]:
        """Label, text and ink of each part."""
        parts: list[tuple[str, str, Ink]] = []
        sign = self.glyphs.state(snapshot.state)
        problem = snapshot.problem
        if snapshot.state == "lost":
            text = _("its supervisor is gone: it was killed, or the server went down")
            parts.append((sign, text, Ink.ERROR))
        elif snapshot.state == "failed":
            parts.append((sign, problem.message if problem else _("it failed; the log says more (o)"), Ink.ERROR))
        elif snapshot.state == "stopped":
            parts.append((sign, _("stopped at step {step}").format(step=whole(snapshot.step)), Ink.WARNING))
        elif snapshot.state == "done":
            return [(sign, _("done: m serves it, v reads its answers; the result is in its folder final/"), Ink.GOOD)]
        else:
            return []
        found = snapshot.post_mortem
        if found is not None:
            parts += self._post_mortem(found)
        elif problem is not None and snapshot.state != "lost":
            if problem.fix:
                parts.append((_("fix"), problem.fix, Ink.PLAIN))
            if problem.where:
                parts.append((_("where"), problem.where, Ink.MUTED))
        if snapshot.safe_step is None:
            if not any(label.isdigit() for label, _text, _ink in parts):  # else a key does that
                parts.append(("", _("no checkpoint was saved: start it again"), Ink.MUTED))
        else:
            text = _("resume from step {step}").format(step=whole(snapshot.safe_step))
            parts.append(("r", text, Ink.ACCENT))
        return parts

    @staticmethod
    def _post_mortem(found: PostMortem) -> list[tuple[str, str, Ink]]:
        """The cause, the line that shows it, and the fixes under the keys that apply them."""
        cause = " · ".join(part for part in (found.title, found.where) if part)
        parts = [(_("why"), cause, Ink.PLAIN)]
        if found.seen:
            parts.append((_("seen"), found.seen, Ink.MUTED))
        for number, fix in enumerate(found.fixes[:FIXES], 1):
            if fix.applicable:
                parts.append((str(number), fix.text, Ink.ACCENT))
            else:
                parts.append((_("fix"), f"{fix.text}: {fix.command}" if fix.command else fix.text, Ink.PLAIN))
        return parts

    def _wrapped(self, width: int) -> list[tuple[str, str, Ink]]:
        parts = self.message(self._snapshot)
        label = max((len(part[0]) for part in parts), default=0) + 2
        lines: list[tuple[str, str, Ink]] = []
        for index, (name, text, ink) in enumerate(parts):
            room = max(8, width - label - 2)
            most = LINES_A_PART if index == 0 or self._snapshot.post_mortem is None else 1
            wrapped = textwrap.wrap(text, room, max_lines=most, placeholder=" …") or [""]
            lines += [(name if row == 0 else "", line, ink) for row, line in enumerate(wrapped)]
        return lines

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """As many rows as the text takes."""
        return len(self._wrapped(width))

    def paint(self, cells: Cells) -> None:
        """Labels in one column, text in the next."""
        lines = self._wrapped(cells.width)
        indent = max((len(line[0]) for line in lines), default=0) + 2
        for y, (name, text, ink) in enumerate(lines):
            cells.put(1, y, name, Ink.ACCENT if ink is Ink.ACCENT else Ink.MUTED if ink is Ink.PLAIN else ink)
            cells.put(1 + indent, y, text, Ink.PLAIN if ink is Ink.ACCENT else ink)

    def text(self) -> str:
        """Everything that is said, for the clipboard."""
        return "\n".join(f"{name} {text}".strip() for name, text, _ink in self.message(self._snapshot))
