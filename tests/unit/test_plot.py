"""Curves as characters: known curves give known cells."""

from __future__ import annotations

import numpy as np
import pytest

from tui.widgets.plot import fill, pack, rows

NAN = float("nan")


def text(codes: np.ndarray) -> list[str]:
    return ["".join(map(chr, row)) for row in codes.tolist()]


def test_rows_run_from_the_top_down_and_clip() -> None:
    values = np.array([0.0, 1.0, 2.0, -5.0, 9.0, NAN])
    assert rows(values, 0.0, 2.0, 9).tolist()[:5] == [8, 4, 0, 8, 0]
    assert np.isnan(rows(values, 0.0, 2.0, 9)[5])


def test_rows_on_a_log_axis() -> None:
    values = np.array([0.01, 0.1, 1.0, 0.0, -1.0])
    scaled = rows(values, 0.01, 1.0, 5, log=True)
    assert scaled[:3].tolist() == pytest.approx([4, 2, 0])
    assert np.isnan(scaled[3:]).all()


def test_a_flat_line_is_one_row_of_dots() -> None:
    line = np.full(8, 2.0)
    codes, where = pack(fill(line, line, 4), "braille")
    assert text(codes) == ["⠤⠤⠤⠤"]
    assert where.all()


def test_a_full_band_is_full_cells() -> None:
    codes, _where = pack(fill(np.zeros(4), np.full(4, 3.0), 4), "braille")
    assert text(codes) == ["⣿⣿"]


def test_a_falling_line_is_joined() -> None:
    line = np.array([0.0, 7.0, 7.0, 7.0])
    dots = fill(line, line, 8)
    assert dots[:, :2].any(axis=1).all()  # no row between the two points is empty
    assert dots[:, 2:].sum() == 2
    rising = fill(line[::-1], line[::-1], 8)
    assert (rising == dots[:, ::-1]).all()


def test_a_gap_is_not_bridged() -> None:
    line = np.array([0.0, 0.0, NAN, NAN, 7.0, 7.0])
    dots = fill(line, line, 8)
    assert not dots[:, 2:4].any()
    assert dots.sum() == 4


def test_half_blocks() -> None:
    dots = np.array([[1, 0, 1, 0], [0, 1, 1, 0]], dtype=bool)
    codes, where = pack(dots, "block")
    assert text(codes) == ["▀▄█ "]
    assert where.tolist() == [[True, True, True, False]]


def test_ascii() -> None:
    dots = np.array([[1, 0], [0, 1]], dtype=bool)
    codes, where = pack(dots, "ascii", "o")
    assert (codes[where] == ord("o")).all()
    assert where.tolist() == dots.tolist()
