"""The right end of the headers that are painted in cells: what is at risk, and how long the server lasts."""

from __future__ import annotations

from tui.sources.lease_source import LeaseLine, candidates
from tui.widgets.cells import Cells, CellWidget, Ink

TONES = {"muted": Ink.MUTED, "warning": Ink.WARNING, "error": Ink.ERROR}


def follow_lease(widget: CellWidget) -> None:
    """Paint a header again when what is said of the lease changes, where its screen is in front."""

    def changed(_line: object) -> None:
        if widget.app.screen is widget.screen or widget.app.screen.is_modal:
            widget.repaint()

    if hasattr(widget.app, "lease"):
        widget.watch(widget.app, "lease", changed, init=False)


def put_right_side(cells: Cells, x: int, risks: list[str], ink: Ink, lease: LeaseLine) -> int:
    """Put the longest wording that fits right of column `x`; the column where it begins."""
    for risk, text in candidates(risks, lease):
        length = len(risk) + len(text) + (3 if risk and text else 0)
        if x + 3 + length < cells.width:
            begin = (
                cells.put_right(cells.width - 1, 0, text, TONES.get(lease.tone, Ink.MUTED)) if text else cells.width - 1
            )
            return cells.put_right(begin - (3 if text else 0), 0, risk, ink) if risk else begin
    return cells.width
