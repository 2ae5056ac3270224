"""The cell grid: clipping, wide characters, changed spans, strips; and the signs each terminal gets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.style import Style
from textual.geometry import Region

from tui.widgets.cells import Cells, Ink
from tui.widgets.figures import fixed, loss, percent, small, whole
from tui.widgets.glyphs import ASCII, BLOCK, BRAILLE, choose

STYLES = [Style(color=f"color({ink.value})") for ink in Ink]


def test_text_is_cut_and_never_wraps() -> None:
    cells = Cells(10, 2)
    assert cells.put(6, 0, "abcdef") == 10
    assert cells.put(0, 0, "xyz", end=2) == 2
    assert cells.text() == ["xy    abcd", ""]
    assert cells.put(0, 5, "nowhere") == 0
    assert cells.put(20, 0, "nowhere") == 20


def test_right_aligned_text() -> None:
    cells = Cells(10, 1)
    assert cells.put_right(10, 0, "1,240") == 5
    assert cells.text() == ["     1,240"]
    cells = Cells(4, 1)
    cells.put_right(4, 0, "100,000")
    assert cells.text() == [""]  # half a number would be another number


def test_wide_characters_take_two_cells_and_are_not_halved() -> None:
    cells = Cells(6, 1)
    assert cells.put(0, 0, "日本語!") == 6
    assert cells.text() == ["日本語"]
    strip = cells.strip(0, STYLES)
    assert strip.text == "日本語"
    assert strip.cell_length == 6
    cells = Cells(5, 1)
    cells.put(0, 0, "日本語")
    assert cells.strip(0, STYLES).cell_length == 5


@given(st.text(max_size=30), st.integers(0, 12), st.integers(0, 20))
def test_whatever_is_written_a_row_has_its_width(text: str, width: int, x: int) -> None:
    cells = Cells(width, 1)
    cells.put(x, 0, text)
    strip = cells.strip(0, STYLES)
    assert cell_len(strip.text) == width


def test_only_the_changed_span_of_a_row_is_reported() -> None:
    old, new = Cells(20, 3), Cells(20, 3)
    for cells in (old, new):
        cells.put(0, 1, "step 1,240   loss 1.032")
    assert new.changes(old) == []
    new.put(9, 1, "1")
    new.put(17, 1, "9", Ink.ERROR)
    new.put(3, 2, "x")
    assert new.changes(old) == [Region(9, 1, 9, 1), Region(3, 2, 1, 1)]


def test_changes_far_apart_are_two_spans() -> None:
    old, new = Cells(80, 1), Cells(80, 1)
    new.put(2, 0, "a")
    new.put(10, 0, "b")
    new.put(60, 0, "cc")
    assert new.changes(old) == [Region(2, 0, 9, 1), Region(60, 0, 2, 1)]


def test_a_change_of_ink_is_a_change() -> None:
    old, new = Cells(4, 1), Cells(4, 1)
    old.put(0, 0, "ab")
    new.put(0, 0, "a")
    new.put(1, 0, "b", Ink.ERROR)
    assert new.changes(old) == [Region(1, 0, 1, 1)]


def test_a_strip_has_one_segment_an_ink() -> None:
    cells = Cells(8, 1)
    cells.put(0, 0, "ab", Ink.MUTED)
    cells.put(2, 0, "cd", Ink.ERROR)
    strip = cells.strip(0, STYLES)
    assert [(s.text, s.style) for s in strip] == [
        ("ab", STYLES[Ink.MUTED]),
        ("cd", STYLES[Ink.ERROR]),
        ("    ", STYLES[Ink.PLAIN]),
    ]


@pytest.mark.parametrize("size", [(0, 0), (0, 3), (3, 0), (-1, -1)])
def test_grids_without_cells(size: tuple[int, int]) -> None:
    cells = Cells(*size)
    cells.put(0, 0, "text")
    assert cells.changes(Cells(*size)) == []
    assert cells.strip(0, STYLES).cell_length == max(0, size[0])


@pytest.mark.parametrize(
    ("environ", "options", "expected"),
    [
        ({"TERM": "xterm-256color"}, {}, BRAILLE),
        ({"TERM": "tmux-256color"}, {}, BRAILLE),
        ({"TERM": "linux"}, {}, BLOCK),
        ({"TERM": "dumb"}, {}, ASCII),
        ({"TERM": "xterm", "NO_COLOR": "1"}, {}, BRAILLE),  # no colors is not no signs
        ({"TERM": "xterm"}, {"ascii_only": True}, ASCII),
    ],
)
def test_signs_by_terminal(environ: dict[str, str], options: dict[str, bool], expected: object) -> None:
    assert choose(environ, **options) is expected


def test_every_sign_is_one_column_wide() -> None:
    for glyphs in (BRAILLE, BLOCK, ASCII):
        for name, value in vars(glyphs).items():
            if name not in ("mode", "parts"):
                assert cell_len(value) == 1, (glyphs.mode, name)
        assert all(cell_len(sign) == 1 for sign in glyphs.parts)
    assert all(value.isascii() for value in vars(ASCII).values())


def test_figures() -> None:
    assert (whole(1240), whole(None)) == ("1,240", "-")
    assert (loss(1.0321), loss(123.456), loss(123456.7), loss(None)) == ("1.032", "123.5", "123,457", "-")
    assert (loss(float("nan")), loss(float("inf")), loss(float("-inf"))) == ("NaN", "inf", "-inf")
    assert (fixed(0.432, 2), fixed(None, 2)) == ("0.43", "-")
    assert (small(9.1e-5), small(None), small(0.0)) == ("9.1e-05", "-", "0.0e+00")
    assert (percent(0.41), percent(None)) == ("41 %", "-")
