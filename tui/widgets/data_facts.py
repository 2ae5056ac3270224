"""Around the row of the data screen: which row it is, what preparing would do, what the lengths suggest."""

from __future__ import annotations

from dataclasses import dataclass

from engine.data.examine import Found, Outcome
from engine.data.study import Picture
from engine.text import _, ngettext, number
from tui.widgets.cells import Cells, CellWidget, Ink
from tui.widgets.data_lengths import share


@dataclass(frozen=True)
class Place:
    """Where the row is: among all rows, and among those of a filter."""

    number: int
    rows: int | None  # None: not counted yet
    filter: Found | None = None
    at: int = 0
    of: int = 0


class DataTitle(CellWidget):
    """Two lines: which row of which data; what it is in tokens and what is wrong with it."""

    DEFAULT_CSS = """
    DataTitle { height: 2; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._picture: Picture | None = None
        self._place: Place | None = None
        self._data = ""

    def show(self, name: str, picture: Picture | None, place: Place | None) -> None:
        """Name the data, the row, its place."""
        self._data, self._picture, self._place = name, picture, place
        self.repaint()

    def paint(self, cells: Cells) -> None:
        """What does not fit is cut at the end."""
        x = cells.put(1, 0, _("DATA"), Ink.STRONG) + 2
        place, picture = self._place, self._picture
        if place is None or picture is None:
            cells.put_text(x, 0, self._data, Ink.ACCENT)
            return
        of = "…" if place.rows is None else number(place.rows)
        where = _("row {n} of {of}").format(n=number(place.number + 1), of=of)
        if place.filter is not None:
            where = _("{at} of {of} {finding}, {row}").format(
                at=number(place.at + 1), of=number(place.of), finding=place.filter.name.replace("_", " "), row=where
            )
        begin = cells.put_right(cells.width - 1, 0, where, Ink.STRONG)
        cells.put_text(x, 0, self._data, Ink.ACCENT, end=begin - 2)
        x = 1
        if picture.dropped:
            x = cells.put(x, 1, _("DROPPED"), Ink.ERROR) + 2
        document = picture.shown.document
        x = cells.put_text(x, 1, f"{picture.file.name}:{picture.line}", Ink.MUTED) + 2
        words = [str(document["form"] or _("not a training row"))]
        if "tokens" in document:
            words.append(_("{n} tokens").format(n=number(document["tokens"])))
            words.append(_("{n} trained").format(n=number(document["trained"])))
            if document["cut"]:
                words.append(_("{n} cut").format(n=number(document["cut"])))
        x = cells.put_text(x, 1, f" {self.glyphs.dot} ".join(words)) + 2
        if problems := document["problems"]:
            cells.put_text(x, 1, ", ".join(problems).replace("_", " "), Ink.WARNING)


class DataFoot(CellWidget):
    """What preparing would do, what the lengths suggest, what goes on."""

    DEFAULT_CSS = """
    DataFoot { height: 3; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._outcome: Outcome | None = None
        self._state: tuple[str, Ink] = ("", Ink.MUTED)

    def show(self, outcome: Outcome | None) -> None:
        """Show what a check said."""
        self._outcome = outcome
        self.repaint()

    def say(self, text: str, ink: Ink = Ink.MUTED) -> None:
        """What goes on, or went wrong."""
        self._state = (text, ink)
        self.repaint()

    def paint(self, cells: Cells) -> None:
        """Three lines."""
        outcome = self._outcome
        y = 0
        for heading, text in self._sentences(outcome) if outcome is not None else ():
            x = cells.put(1, y, heading, Ink.STRONG) + 2
            cells.put_text(x, y, text)
            y += 1
        if self._state[0]:
            cells.put_text(1, y, *self._state)

    @staticmethod
    def _sentences(outcome: Outcome) -> list[tuple[str, str]]:
        left = [f"{number(count)} {kind.replace('_', ' ')}" for kind, count in outcome.left_out.items()]
        text = _("leaves out {what}").format(what=", ".join(left)) if left else _("leaves nothing out")
        if outcome.masked:
            one, more = "; masks personal data in {n} place", "; masks personal data in {n} places"
            masks = ngettext(one, more, outcome.masked)
            text += masks.format(n=number(outcome.masked))
        kept = outcome.usable - sum(
            count for kind, count in outcome.left_out.items() if kind not in ("unusable", "dropped")
        )
        text += _("; keeps {n} of {of} rows").format(n=number(max(0, kept)), of=number(outcome.rows))
        said = [(_("PREPARE"), text)]
        if outcome.advice is not None:
            advice = outcome.advice
            on = _("on") if advice.packing else _("off")
            text = _(
                "max_length {length} (cuts {cut}), packing {packing} (a row fills {filled}), "
                "global batch {batch}: {steps} steps an epoch"
            )
            text = text.format(
                length=number(advice.max_length), cut=share(advice.cut), packing=on, filled=share(advice.filled),
                batch=number(advice.global_batch_size), steps=number(advice.steps),
            )  # fmt: skip
            said.append((_("BETTER"), text))
        return said
