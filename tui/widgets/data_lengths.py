"""How long the rows are: a histogram with quantiles, and what share would be cut at each length."""

from __future__ import annotations

from engine.data.examine import Lengths
from engine.text import _, number
from tui.widgets.cells import Cells, CellWidget, Ink

LABEL, SHARE = 8, 6


def share(value: float) -> str:
    """A share in percent: as short as it tells."""
    percent = 100 * value
    return "0 %" if not value else f"{number(percent, 1)} %" if percent < 9.95 else f"{number(percent)} %"


class DataLengths(CellWidget, can_focus=False):
    """One line a length: how many rows are that long, and how many are longer."""

    def __init__(self) -> None:
        super().__init__()
        self._lengths: Lengths | None = None
        self._max_length: int | None = None

    def show(self, lengths: Lengths | None, max_length: int | None) -> None:
        """Show these lengths, and where rows are cut."""
        self._lengths, self._max_length = lengths, max_length
        self.repaint()

    def paint(self, cells: Cells) -> None:
        """Heading, quantiles, bars; the line of max_length is marked."""
        found = self._lengths
        heading = _("LENGTHS") if found is None else _("TOKENS") if found.is_tokens else _("CHARACTERS")
        x = cells.put(1, 0, heading, Ink.STRONG)
        if found is None or not found.bins:
            return
        quantiles = f"50 % {number(found.p50)}  90 % {number(found.p90)}  99 % {number(found.p99)}"
        if x + 2 + len(quantiles) + 1 < cells.width:
            cells.put_right(cells.width - 1, 0, quantiles, Ink.MUTED)
            top = 1
        else:
            cells.put_text(1, 1, quantiles, Ink.MUTED)
            top = 2
        bar = x = 1 + LABEL + 1
        end = cells.width - 1 - 2 * (SHARE + 1)
        cells.put_right(cells.width - 1 - SHARE - 1, top, _("rows"), Ink.MUTED)
        cells.put_right(cells.width - 1, top, _("cut"), Ink.MUTED)
        cells.put_right(bar - 1, top, _("up to"), Ink.MUTED)
        room = cells.height - top - 1
        bins = _fewer(found.bins, room)
        most = max(count for _edge, count in bins)
        total = len(found.values)
        marked = self._marked(bins)
        for y, (edge, count) in enumerate(bins, top + 1):
            ink = Ink.ACCENT if y - top - 1 == marked else Ink.PLAIN
            if y - top - 1 == marked:
                cells.put(0, y, ">", Ink.ACCENT)
            cells.put_right(bar - 1, y, number(edge), ink)
            size = round(count / most * max(1, end - bar)) if most else 0
            cells.put(bar, y, self.glyphs.full * max(size, int(count > 0)), Ink.BAND, end=end)
            cells.put_right(cells.width - 1 - SHARE - 1, y, share(count / total), Ink.MUTED)
            cells.put_right(cells.width - 1, y, share(found.beyond(edge)), ink)

    def _marked(self, bins: list[tuple[int, int]]) -> int | None:
        """The line in which max_length lies."""
        if self._max_length is None or self._lengths is None or not self._lengths.is_tokens:
            return None
        return next((at for at, (edge, _count) in enumerate(bins) if edge >= self._max_length), None)


def _fewer(bins: tuple[tuple[int, int], ...], room: int) -> list[tuple[int, int]]:
    """No more lines than there is room for: the shortest are put together."""
    if len(bins) <= max(1, room):
        return list(bins)
    first = len(bins) - max(1, room) + 1
    return [(bins[first - 1][0], sum(count for _edge, count in bins[:first])), *bins[first:]]
