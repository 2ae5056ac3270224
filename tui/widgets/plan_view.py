"""What the planner answers: memory by component, verdict, time, money, disk, and what to change. One widget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.cells import cell_len

from engine.errors import FtuiError
from engine.plan.mounts import Mount
from engine.plan.plan import Result
from engine.text import _, duration, gigabytes, money, ngettext, number
from tui import plan_words as words
from tui.widgets.cells import Cells, CellWidget, Ink

WIDEST = 124  # columns that the eye follows from a name to its figure
ASIDE = 160  # columns from which advice stands beside the figures
LABEL = 8
LEGEND = 26  # columns of one part's name and size
VERDICT = {"fits": ("done", Ink.GOOD), "tight": ("stopped", Ink.WARNING), "no": ("failed", Ink.ERROR)}
INKS = {
    "weights": Ink.WEIGHTS,
    "gradients": Ink.GRADIENTS,
    "optimizer": Ink.OPTIMIZER,
    "activations": Ink.ACTIVATIONS,
    "logits": Ink.LOGITS,
    "transients": Ink.TRANSIENTS,
    "overhead": Ink.OVERHEAD,
}
LETTERS = {
    "weights": "W", "gradients": "G", "optimizer": "O", "activations": "A", "logits": "L", "transients": "T",
    "overhead": "-",
}  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """A plan and what only this machine knows about it."""

    result: Result
    steps: int | None = None
    own_cost: tuple[float, str] | None = None  # amount and currency, at this server's price
    appliable: tuple[bool, ...] = ()  # which rows of advice a recipe can say


@dataclass
class Line:
    """One row: pieces at columns, with inks. The highest `rank` gives way first where rows are few."""

    pieces: list[tuple[int, str, Ink]] = field(default_factory=list)
    rank: int = 0
    paints: str = ""  # "bar": the stacked bar is painted here
    tail: list[tuple[str, Ink]] = field(default_factory=list)  # right-aligned columns, the last at the edge


def steps_of(result: Result) -> int | None:
    """Optimizer steps of the run; None when the data are not known."""
    r = result.request
    if r.max_steps:
        return r.max_steps
    rows = r.per_device_train_batch_size * r.accumulation * r.data_parallel
    if r.packing or not r.lengths:
        return None if result.tokens is None else max(1, round(result.tokens / (rows * r.max_length)))
    total = sum(count for _length, count in r.lengths)
    return max(1, round(total * r.num_train_epochs / rows))


class PlanView(CellWidget):
    """Draws an outcome; while a value makes no sense, the error over the last plan, which is dim."""

    def __init__(self) -> None:
        super().__init__()
        self._outcome: Outcome | None = None
        self._error: FtuiError | None = None
        self._probing = ""

    def probing(self, text: str) -> None:
        """What a probe is doing, instead of the time that it will tell; empty when there is none."""
        self._probing = text
        self.repaint()

    def show(self, outcome: Outcome | None, error: FtuiError | None) -> None:
        """Draw this; without an outcome the one before stays, dim."""
        self._outcome, self._error = outcome or self._outcome, error
        self.repaint()

    def paint(self, cells: Cells) -> None:
        """Blocks with blank rows between them where there is room; rows of less weight give way where not."""
        if self._outcome is None:
            self._paint_error(cells, 0) if self._error else cells.put(1, 0, _("planning …"), Ink.MUTED)
            return
        aside = cells.width >= ASIDE
        width = min(cells.width, WIDEST) - 1 if not aside else cells.width // 2 - 2
        blocks = [self._memory(width), self._figures(width)]
        if aside:
            self._paint(cells, blocks, 0, width)
            self._paint(cells, [self._advice(cells.width - width - 5)], width + 4, cells.width - width - 5)
        else:
            self._paint(cells, [*blocks, self._advice(width)], 0, width)
        if self._error:
            cells.inks[:] = Ink.MUTED
            self._paint_error(cells, 4)

    def _paint_error(self, cells: Cells, y: int) -> None:
        assert self._error is not None
        for row, text, ink in ((y, self._error.what, Ink.ERROR), (y + 1, self._error.fix or "", Ink.PLAIN)):
            if row < cells.height:
                cells.codes[row], cells.inks[row] = ord(" "), 0
                lead = f"{self.glyphs.cross} " if ink is Ink.ERROR else "  "
                cells.put(1, row, lead + text, ink)

    def _paint(self, cells: Cells, blocks: list[list[Line]], x: int, width: int) -> None:
        blocks = [block for block in blocks if block]
        while (rows := sum(map(len, blocks))) > cells.height:
            least = max((line for block in blocks for line in block), key=lambda line: line.rank)
            if least.rank == 0:
                break
            blocks = [[line for line in block if line is not least] for block in blocks]
        gaps = min(len(blocks) - 1, max(0, cells.height - rows))
        y = int(cells.height > rows + gaps)
        for index, block in enumerate(blocks):
            for line in block:
                self._paint_line(cells, line, x, y, width)
                y += 1
            y += index < gaps

    def _paint_line(self, cells: Cells, line: Line, x: int, y: int, width: int) -> None:
        if line.paints == "bar":
            self._paint_bar(cells, x + 1, y, width - 1)
            return
        end = x + width
        for text, ink in reversed(line.tail):
            end = cells.put_right(end, y, text, ink)
        end -= 2 * bool(line.tail)
        for column, text, ink in line.pieces:
            room = end - x - column
            cut = cell_len(text) > room > 1 and self.glyphs.mode != "ascii"
            cells.put(x + column, y, text[: room - 1] + "…" if cut else text, ink, end=end)

    # Memory

    def _scale(self) -> tuple[float, float | None]:
        """Bytes that the bar stands for, and the usable ones."""
        assert self._outcome is not None
        result = self._outcome.result
        return max(self._card(), result.device.needs, result.device.device), result.context.capacity

    def _card(self) -> float:
        """Bytes of the card, with those that its driver keeps."""
        assert self._outcome is not None
        capacity, card = self._outcome.result.context.capacity, self._outcome.result.context.card
        if capacity is None or card is None:
            return capacity or 0.0
        return max(capacity, card.reported_bytes or card.memory_bytes)

    def _memory(self, width: int) -> list[Line]:
        assert self._outcome is not None
        result = self._outcome.result
        gpus, peak = result.request.num_gpus, result.memory.peak
        title = _("THIS MACHINE'S MEMORY") if words.on_cpu(result) else _("THE GPU")
        if gpus > 1:
            title = _("EACH OF {n} GPUS").format(n=number(gpus))
        phase = _("peaks in {phase}").format(phase=words.phase(peak.name).split(",")[0])
        whole, usable = self._card(), result.context.capacity
        limit = ""
        if usable is not None:
            limit = _("usable {usable} of {whole} GB").format(usable=words.gb(usable), whole=words.gb(whole))
        head = Line([(1, title, Ink.STRONG), (cell_len(title) + 3, phase, Ink.MUTED)], tail=[(limit, Ink.MUTED)])
        lines = [head, Line(paints="bar"), *self._legend(width), self._verdict()]
        if text := words.corrected(result):
            lines.append(Line([(3, text, Ink.MUTED)], rank=1))
        if result.sharding_reason and gpus > 1:
            text = _("{kind}: {reason}").format(kind=result.request.sharding, reason=result.sharding_reason)
            lines.append(Line([(3, text, Ink.MUTED)], rank=4))
        lines += [Line([(3, text, Ink.MUTED)], rank=5) for text in result.request.notes[:2]]
        phases = f" {self.glyphs.dot} ".join(
            f"{words.phase(p.name).split(',')[0]} {words.gb(p.total)}" for p in result.memory.phases
        )
        if cell_len(text := _("phases: {phases}").format(phases=phases)) + 3 <= width:
            lines.append(Line([(3, text, Ink.MUTED)], rank=6))
        return lines

    def _verdict(self) -> Line:
        assert self._outcome is not None
        result = self._outcome.result
        state, ink = VERDICT.get(result.verdict or "", ("queued", Ink.MUTED))
        room = words.room(result)
        said = {
            "fits": _("fits"),
            "tight": _("tight (± {band} %)").format(band=number(100 * result.band)),
            "no": _("does not fit"),
        }.get(result.verdict or "", _("no card to hold it against"))
        text = f"{self.glyphs.state(state)} {said}" + (f", {room}" if room else "")
        return Line([(1, text, ink), (cell_len(text) + 3, f"{self.glyphs.dot} {words.needs(result)}", Ink.PLAIN)])

    def _sign(self, key: str) -> str:
        return LETTERS[key] if self.glyphs.mode == "ascii" else self.glyphs.full

    def _legend(self, width: int) -> list[Line]:
        assert self._outcome is not None
        parts = words.parts(self._outcome.result)
        each = max(1, (width - 1) // LEGEND)
        rows = -(-len(parts) // each)
        each = -(-len(parts) // rows)
        lines = []
        for begin in range(0, len(parts), each):
            line = Line()
            for column, (key, name, size) in enumerate(parts[begin : begin + each]):
                x, figure = 1 + column * LEGEND, words.gb(size)
                line.pieces.append((x, self._sign(key) * 2, INKS[key]))
                line.pieces.append((x + 3, name, Ink.MUTED))
                line.pieces.append((x + LEGEND - 3 - cell_len(figure), figure, Ink.PLAIN))
            lines.append(line)
        return lines

    def _paint_bar(self, cells: Cells, x: int, y: int, width: int) -> None:
        """The parts on the scale of the card; what is beyond the usable memory is an error."""
        assert self._outcome is not None
        scale, usable = self._scale()
        cells.put(x, y, self.glyphs.track * width, Ink.TRACK)
        at = 0.0
        limit = width if usable is None else round(width * usable / scale)
        for key, _name, size in words.parts(self._outcome.result):
            begin, at = round(width * at / scale), at + size
            stop = round(width * at / scale)
            cells.put(x + begin, y, self._sign(key) * (stop - begin), INKS[key])
            if stop > limit:
                cells.inks[y, x + max(begin, limit) : x + stop] = Ink.ERROR
        if usable is not None:
            cells.put(x + min(width - 1, limit), y, self.glyphs.mark, Ink.STRONG)

    # Time, money, disk, host

    def _figures(self, width: int) -> list[Line]:
        assert self._outcome is not None
        outcome, result = self._outcome, self._outcome.result
        lines = [_labelled(_("TIME"), self._probing or self._time(), 0)]
        rows = [words.cost(result.converted(row)) for row in sorted(result.money, key=lambda row: row["amount"])[:3]]
        if outcome.own_cost is not None:
            rows.insert(0, _("{amount} at this server's price").format(amount=money(*outcome.own_cost)))
        lines += [
            _labelled(_("MONEY") if index == 0 else "", text, 0 if index == 0 else 5) for index, text in enumerate(rows)
        ]
        lines += self._disk()
        if not words.on_cpu(result):
            host = words.host(result)
            if result.host_total:
                host += " " + _("(of {size})").format(size=gigabytes(result.host_total, 0))
            lines.append(_labelled(_("HOST"), host, 2))
        return lines + [Line([(LABEL + 1, text, Ink.WARNING)], rank=1) for text in words.warnings(result)]

    def _disk(self) -> list[Line]:
        """What is written, and what is free for it; of two disks each has a row."""
        assert self._outcome is not None
        result = self._outcome.result
        line = _labelled(_("DISK"), words.files(result), 1)
        if len(result.mounts) != 1:
            rooms = [(words.room_on(mount), mount) for mount in result.mounts]
            return [line, *(Line([(LABEL + 1, text, _ink(mount))], rank=3) for text, mount in rooms)]
        (mount,) = result.mounts
        text = _("{size} free").format(size=gigabytes(mount.free))
        line.pieces.append((LABEL + 2 + cell_len(words.files(result)), f"{self.glyphs.dot} {text}", _ink(mount)))
        return [line]

    def _time(self) -> str:
        assert self._outcome is not None
        result, steps = self._outcome.result, self._outcome.steps
        if result.speed is None:
            return words.unknown_time()
        parts = []
        if steps is not None:
            parts.append(ngettext("{n} step", "{n} steps", steps).format(n=number(steps)))
        if result.hours is not None:
            times = result.time()
            band = tuple(duration(times[end] * 3600) for end in ("low", "high"))
            parts.append(f"{duration(result.hours * 3600)} ({band[0]} - {band[1]})")
        else:
            parts.append(_("how long: name the data, or max steps"))
        rates = {
            "estimate": _("{rate} tok/s, estimate"), "measured": _("{rate} tok/s, measured"),
            "probe": _("{rate} tok/s, from a probe"),
        }  # fmt: skip
        rate = rates[result.basis]
        return f" {self.glyphs.dot} ".join([*parts, rate.format(rate=number(result.speed.total))])

    # Advice

    def _advice(self, width: int) -> list[Line]:
        assert self._outcome is not None
        rows = self._outcome.result.advice
        if not rows:
            return []
        lines = [Line([(1, _("WHAT TO CHANGE"), Ink.STRONG)], rank=2)]
        tails = [_facts(row) for row in rows]
        widths = [max(map(cell_len, column)) for column in zip(*tails, strict=True)]
        for index, (row, facts) in enumerate(zip(rows, tails, strict=True)):
            able = index < len(self._outcome.appliable) and self._outcome.appliable[index]
            line = self._advised(index + 1, row, able)
            line.tail = [
                (" " * (size + 2 - cell_len(text)) + text, Ink.MUTED)
                for text, size in zip(facts, widths, strict=True)
                if size
            ]
            lines.append(line)
        return lines

    def _advised(self, index: int, row: Mapping[str, Any], able: bool) -> Line:
        state, ink = VERDICT.get(row["verdict"] or "", ("queued", Ink.MUTED))
        pieces = [
            (1, str(index) if able else " ", Ink.ACCENT),
            (3, self.glyphs.state(state), ink),
            (5, str(row["text"]), Ink.PLAIN),
        ]
        return Line(pieces, rank=3 if index > 3 else 0)

    def text(self) -> str:
        """What is shown, for the clipboard."""
        return "\n".join(line for line in self.lines() if line)


def _facts(row: Mapping[str, Any]) -> tuple[str, str, str]:
    """Memory, time (or how much faster) and cost of a piece of advice; empty where not known."""
    time = "" if row["hours"] is None else duration(row["hours"] * 3600)
    if not time and row.get("speed_ratio") and abs(row["speed_ratio"] - 1) >= 0.01:
        time = _("{ratio}x speed").format(ratio=number(row["speed_ratio"], 2))
    cost = "" if row["money"] is None else money(row["money"]["amount"], row["money"]["currency"])
    return _("{gb} GB").format(gb=number(row["needs_gb"], 1)), time, cost


def _ink(mount: Mount) -> Ink:
    return Ink.MUTED if mount.fits else Ink.WARNING if mount.possible else Ink.ERROR


def _labelled(label: str, text: str, rank: int) -> Line:
    return Line([(1, label, Ink.MUTED), (LABEL + 1, text, Ink.PLAIN)], rank=rank)
