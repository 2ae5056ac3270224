"""The lines above the checkpoints: which run, what would be lost now, and how full the disk will be."""

from __future__ import annotations

import time

from engine.text import _, clock, gigabytes, when
from tui import risk
from tui.paths import short
from tui.sources.lease_source import LeaseLine
from tui.state.checkpoints import CheckpointsSnapshot
from tui.widgets.cells import Cells, CellWidget, Ink
from tui.widgets.figures import whole
from tui.widgets.right_side import follow_lease, put_right_side
from tui.widgets.run_facts import STATE_INK
from tui.widgets.run_table import state_word

now = time.time
DAY = 86_400
GAUGE = 28
LOW = 0.1  # of the disk


class CheckpointHeader(CellWidget):
    """The run and its state; on the right what is at risk."""

    DEFAULT_CSS = """
    CheckpointHeader { dock: top; height: 1; background: $panel; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._snapshot = CheckpointsSnapshot()

    def on_mount(self) -> None:
        """Follow the lease."""
        follow_lease(self)

    def show(self, snapshot: CheckpointsSnapshot) -> None:
        """Draw this state of the run."""
        self._snapshot = snapshot
        self.repaint()

    def paint(self, cells: Cells) -> None:
        """The name gives way first."""
        snapshot = self._snapshot
        state = f"{self.glyphs.state(snapshot.state)} {state_word(snapshot.state)}"
        step = whole(snapshot.step) + (f"/{whole(snapshot.max_steps)}" if snapshot.max_steps else "")
        x = cells.put(1, 0, "ftui", Ink.ACCENT) + 2
        x = cells.put_text(x, 0, snapshot.run, Ink.STRONG, end=cells.width - len(state) - len(step) - 3) + 1
        x = cells.put(x, 0, state, STATE_INK.get(snapshot.state, Ink.PLAIN)) + 1
        x = cells.put(x, 0, step)
        texts: list[str] = []
        if snapshot.live and snapshot.step:
            texts = risk.sentences(snapshot.safe_step, snapshot.at_risk_steps, snapshot.at_risk_seconds)
        ink = Ink.WARNING if snapshot.safe_step is None else Ink.MUTED
        put_right_side(cells, x, texts, ink, getattr(self.app, "lease", None) or LeaseLine())


class DiskGauge(CellWidget):
    """How full the disk is, and when it will be."""

    DEFAULT_CSS = """
    DiskGauge { height: 1; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._snapshot = CheckpointsSnapshot()

    def show(self, snapshot: CheckpointsSnapshot) -> None:
        """Draw the disk of this snapshot."""
        self._snapshot = snapshot
        self.repaint()

    def paint(self, cells: Cells) -> None:
        """Figures, a bar, the forecast; on a narrow terminal the bar goes first."""
        snapshot = self._snapshot
        if snapshot.disk_free is None or not snapshot.disk_total:
            return
        free, total = snapshot.disk_free, snapshot.disk_total
        told, ink = self.forecast()
        kept = sum(row.bytes for row in snapshot.rows)
        text = _("{free} free of {total}, {kept} in checkpoints").format(
            free=gigabytes(free), total=gigabytes(total, 0), kept=gigabytes(kept)
        )
        x = cells.put(1, 0, _("disk"), Ink.MUTED) + 1
        x = cells.put_text(x, 0, text, Ink.ERROR if free < LOW * total else Ink.PLAIN) + 2
        if cells.width - x > len(told) + GAUGE + 4:
            filled = round(GAUGE * (1 - free / total))
            end = cells.put(x, 0, self.glyphs.full * filled, Ink.WARNING if free < LOW * total else Ink.LINE)
            cells.put(end, 0, self.glyphs.track * (GAUGE - filled), Ink.TRACK)
            x += GAUGE + 2
        cells.put_text(x, 0, told, ink)

    def forecast(self) -> tuple[str, Ink]:
        """When the disk is full, in words."""
        snapshot = self._snapshot
        found = snapshot.forecast
        if found is None:
            return "", Ink.MUTED
        if found.step is None:
            return _("enough for the whole run"), Ink.MUTED
        text = _("full at step {step}").format(step=whole(found.step))
        if found.seconds is not None:
            moment = now() + found.seconds
            text += ", " + (clock(moment)[:5] if found.seconds < DAY else when(moment))
        return text, Ink.WARNING


class CheckpointDetails(CellWidget):
    """The selected checkpoint: its place, and what is wrong with it."""

    DEFAULT_CSS = """
    CheckpointDetails { height: 2; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[tuple[str, Ink]] = []

    def show(self, lines: list[tuple[str, Ink]]) -> None:
        """Draw these lines."""
        if lines != self._lines:
            self._lines = lines
            self.repaint()

    def paint(self, cells: Cells) -> None:
        """One line each."""
        for y, (text, ink) in enumerate(self._lines):
            cells.put_text(3, y, text, ink)


def place(path: str) -> str:
    """A path as screens show it."""
    from pathlib import Path

    return str(short(Path(path)))
