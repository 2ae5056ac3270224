"""Memory, utilization, temperature and power of each GPU; on a run without GPUs the server's memory and processor."""

from __future__ import annotations

from textual.geometry import Size

from engine.text import _, gigabytes, ngettext
from tui.state.snapshot import Gpu, Host
from tui.widgets.cells import Cells, CellWidget, Ink
from tui.widgets.figures import UNKNOWN, figure, fixed, whole

GB = 1e9
_NEARLY_FULL = 0.97
_FIGURES = 25  # columns of the figures right of a bar
_HALF = 37  # columns that one GPU needs where two stand side by side


class GpuBars(CellWidget):
    """One row a GPU where there is room, two GPUs a row where there is not."""

    DEFAULT_CSS = """
    GpuBars { height: auto; }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._gpus: tuple[Gpu, ...] = ()
        self._host: Host | None = None
        self.predicted: float | None = None
        """Bytes that the plan predicted for each GPU, or for the run where it has none: a mark on the bar."""
        self._stale = False

    def show(
        self, gpus: tuple[Gpu, ...], host: Host | None, predicted: float | None = None, *, stale: bool = False
    ) -> None:
        """Draw these samples; `stale` ones are the last of a run that has ended, and are drawn dim."""
        if (gpus, host, predicted, stale) == (self._gpus, self._host, self.predicted, self._stale):
            return
        self._stale = stale
        grown = len(gpus) != len(self._gpus) or (host is None) != (self._host is None)
        self._gpus, self._host, self.predicted = gpus, host, predicted
        if grown:
            self.refresh(layout=True)
        self.repaint()

    def _ink(self, ink: Ink) -> Ink:
        if self._stale:
            return Ink.BAND if ink is Ink.LINE else Ink.MUTED if ink is Ink.PLAIN else ink
        return ink

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Rows wanted where the height is left to us."""
        if not self._gpus:
            return 4 if self._host else 1
        return 1 + (len(self._gpus) + 1) // 2 + (self._host is not None)

    def paint(self, cells: Cells) -> None:
        """Title, GPUs, then the server where rows are left."""
        if not self._gpus:
            self._paint_server(cells)
            return
        room = cells.height - 1
        if len(self._gpus) <= room - 1 or cells.width < 2 * _HALF:
            self._paint_list(cells)
        else:
            self._paint_pairs(cells)

    def _paint_list(self, cells: Cells) -> None:
        width = cells.width
        self._paint_title(cells, 0, width)
        rows = cells.height - 1
        shown = self._gpus if len(self._gpus) <= rows else self._gpus[: max(0, rows - 1)]
        for y, gpu in enumerate(shown, 1):
            self._paint_gpu(cells, 0, y, width, gpu)
        hidden = len(self._gpus) - len(shown)
        if hidden:
            text = ngettext("{n} more", "{n} more", hidden).format(n=whole(hidden))
            cells.put(1, cells.height - 1, text, Ink.MUTED)
            return
        y = len(shown) + 2
        if cells.height - y >= 3:
            self._paint_host(cells, y)
        elif cells.height > len(shown) + 1:
            self._paint_host_line(cells, cells.height - 1)

    def _paint_pairs(self, cells: Cells) -> None:
        half = cells.width // 2
        self._paint_title(cells, 0, half)
        self._paint_title(cells, half, cells.width - half, first=False)
        rows = (len(self._gpus) + 1) // 2
        for index, gpu in enumerate(self._gpus):
            column, row = divmod(index, rows)
            self._paint_gpu(cells, column * half, 1 + row, half, gpu)
        if cells.height > rows + 1:
            self._paint_host_line(cells, rows + 1)

    def _paint_title(self, cells: Cells, x: int, width: int, *, first: bool = True) -> None:
        end = x + width - 1
        total = next((gpu.memory_total for gpu in self._gpus if gpu.memory_total), None)
        if first:
            cells.put(x + 1, 0, _("GPU, last seen") if self._stale else _("GPU"), Ink.MUTED)
        text = _("GB of {total}").format(total=figure(round(total / GB))) if total else _("GB")
        bar = width - _FIGURES - 6
        begin = end - 18 - len(text)
        if bar > 0 and begin > x + (16 if self._stale else 5):
            cells.put(begin, 0, text, Ink.MUTED)
        cells.put_right(end - 12, 0, _("util"), Ink.MUTED)
        cells.put_right(end - 6, 0, _("temp"), Ink.MUTED)
        cells.put_right(end, 0, _("watt"), Ink.MUTED)

    def _paint_gpu(self, cells: Cells, x: int, y: int, width: int, gpu: Gpu) -> None:
        end = x + width - 1
        cells.put_right(x + 4, y, str(gpu.index), Ink.ERROR if gpu.lost else Ink.MUTED)
        if gpu.lost:
            text = _("lost: it no longer answers")
            cells.put(x + 6, y, f"{self.glyphs.cross} {text}", Ink.ERROR, end=end)
            return
        bar = width - _FIGURES - 6
        share = gpu.memory_used / gpu.memory_total if gpu.memory_used is not None and gpu.memory_total else None
        full = share is not None and share >= _NEARLY_FULL
        if bar >= 3:
            mark = self.predicted / gpu.memory_total if self.predicted and gpu.memory_total else None
            self._paint_bar(cells, x + 5, y, bar, share, Ink.WARNING if full else Ink.LINE, mark)
        used = UNKNOWN if gpu.memory_used is None else fixed(gpu.memory_used / GB, 1)
        cells.put_right(end - 18, y, used, Ink.WARNING if full else self._ink(Ink.PLAIN))
        cells.put_right(end - 12, y, _unit(gpu.utilization, " %"), self._ink(Ink.PLAIN))
        cells.put_right(end - 6, y, _unit(gpu.temperature, self.glyphs.degree), self._ink(Ink.PLAIN))
        cells.put_right(end, y, _unit(gpu.power, ""), self._ink(Ink.PLAIN))
        if gpu.xid or gpu.ecc_errors:
            text = f"xid {gpu.xid:.0f}" if gpu.xid else f"ecc {gpu.ecc_errors:.0f}"
            cells.put(x + 5, y, f" {text} ", Ink.ERROR, end=x + 5 + max(bar, 0))

    def _paint_bar(
        self, cells: Cells, x: int, y: int, width: int, share: float | None, ink: Ink, mark: float | None = None
    ) -> None:
        """A bar of `width` columns, as fine as the terminal's block characters allow."""
        glyphs = self.glyphs
        cells.put(x, y, glyphs.track * width, Ink.TRACK)
        if share is not None:
            parts = len(glyphs.parts) + 1
            filled, rest = divmod(round(min(max(share, 0.0), 1.0) * width * parts), parts)
            cells.put(x, y, glyphs.full * filled + (glyphs.parts[rest - 1] if rest else ""), self._ink(ink))
        if mark is not None and 0 <= mark <= 1:
            cells.put(x + min(width - 1, int(mark * width)), y, glyphs.mark, Ink.STRONG)

    # The server

    def _paint_server(self, cells: Cells) -> None:
        if self._host is None:
            cells.put(1, 0, _("no hardware sample yet"), Ink.MUTED)
            return
        cells.put(1, 0, _("SERVER, last seen") if self._stale else _("SERVER"), Ink.MUTED)
        self._paint_host(cells, 1)

    def _paint_host(self, cells: Cells, y: int) -> None:
        host = self._host
        if host is None:
            return
        memory = _share(host.memory_used, host.memory_total)
        disk_used = host.disk_total - host.disk_free if host.disk_total and host.disk_free is not None else None
        rows = (
            (_("RAM"), memory, self._memory_text(host, None if self._gpus else self.predicted)),
            (_("CPU"), None if host.cpu is None else host.cpu / 100, _unit(host.cpu, " %")),
            (_("disk"), _share(disk_used, host.disk_total), self._disk_text(host)),
        )
        label = max(len(name) for name, _share_, _text in rows) + 2
        widest = max(len(text) for _name, _share_, text in rows)
        bar = min(cells.width - label - widest - 3, 40)
        for row, (name, share, text) in enumerate(rows, y):
            cells.put(1, row, name, Ink.MUTED)
            full = share is not None and share >= _NEARLY_FULL and name != _("CPU")
            if bar >= 4:
                mark = self._host_mark(host) if row == y else None
                self._paint_bar(cells, 1 + label, row, bar, share, Ink.WARNING if full else Ink.LINE, mark)
            cells.put(1 + label + (bar + 1 if bar >= 4 else 0), row, text, self._ink(Ink.PLAIN))

    def _paint_host_line(self, cells: Cells, y: int) -> None:
        host = self._host
        if host is None:
            return
        x = 1
        for name, text in (
            (_("RAM"), self._memory_text(host)),
            (_("CPU"), _unit(host.cpu, " %")),
            (_("disk"), self._disk_text(host)),
        ):
            if x + len(name) + 1 + len(text) >= cells.width:
                break
            x = cells.put(x, y, name + " ", Ink.MUTED)
            x = cells.put(x, y, text, self._ink(Ink.PLAIN)) + 3

    def _host_mark(self, host: Host) -> float | None:
        """Where the bar of the host's memory would end if the run took what the plan says."""
        if self._gpus or self.predicted is None or host.memory_used is None or not host.memory_total:
            return None
        return (host.memory_used - (host.memory_ranks or 0.0) + self.predicted) / host.memory_total

    @staticmethod
    def _memory_text(host: Host, planned: float | None = None) -> str:
        if host.memory_used is None or host.memory_total is None:
            return UNKNOWN
        text = _("{used} of {total} GB").format(
            used=fixed(host.memory_used / GB, 0 if host.memory_total >= 1e12 else 1),
            total=figure(round(host.memory_total / GB)),
        )
        if host.memory_ranks is not None:
            ours = fixed(host.memory_ranks / GB, 1)
            if planned is None:
                text += " " + _("({ranks} ours)").format(ranks=ours)
            else:
                text += " " + _("({ranks} of {planned} planned)").format(ranks=ours, planned=fixed(planned / GB, 1))
        return text

    @staticmethod
    def _disk_text(host: Host) -> str:
        if host.disk_free is None:
            return UNKNOWN
        return _("{free} free").format(free=gigabytes(host.disk_free))


def _share(part: float | None, whole_: float | None) -> float | None:
    return part / whole_ if part is not None and whole_ else None


def _unit(value: float | None, unit: str) -> str:
    return UNKNOWN if value is None else whole(value) + unit
