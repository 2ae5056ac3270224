"""Text for people: languages, numbers, durations."""

from __future__ import annotations

import pytest

from engine import text


@pytest.fixture(autouse=True)
def restore():
    yield
    text.set_language(None)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0 s"),
        (59.4, "59 s"),
        (65, "1 min 05"),
        (3 * 3600 + 21 * 60, "3 h 21"),
        (60 * 3600, "2 d 12 h"),
        (-5, "0 s"),
    ],
)
def test_duration(seconds, shown):
    assert text.duration(seconds) == shown


@pytest.mark.parametrize(
    ("size", "shown"), [(999, "999 B"), (1500, "1.5 kB"), (37.1e9, "37.1 GB"), (1.4e12, "1.4 TB"), (0, "0 B")]
)
def test_sizes_are_powers_of_ten(size, shown):
    assert text.gigabytes(size) == shown


def test_numbers_follow_the_language():
    text.set_language("en")
    assert text.number(1234.5, 2) == "1,234.50"
    assert text.money(14.8, "USD") == "$14.80"
    text.set_language("ru_RU")
    assert text.number(1234.5, 2) == "1\xa0234,50"
    assert text.money(585000, "RUB") == "585\xa0000,00\xa0₽"


@pytest.mark.parametrize("value", ["C", "POSIX", "C.UTF-8", "tlh_XX", "", "..", "en_US.UTF-8@euro"])
def test_odd_locales_fall_back_to_english(value, monkeypatch):
    for name in ("LANGUAGE", "LC_ALL", "LC_MESSAGES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LANG", value)
    text.set_language(None)
    assert text.number(1.5, 1) == "1.5"
    assert text._("anything") == "anything"


@pytest.mark.parametrize(
    ("value", "shown"),
    [(1e25, "1.0e+25"), (-1e40, "-1.0e+40"), (float("nan"), "nan"), (float("inf"), "inf"), (12345.678, "12,345.7")],
)
def test_a_loss_that_explodes_is_still_a_number(value, shown):
    assert text.number(value, 1) == shown


def test_what_would_act_on_a_terminal_is_left_out():
    assert text.printable("\x1b[31mred\x1b[0m \x1b]0;title\x07and\x1b[2J \x07\x9bпривет ✓\n") == "red and привет ✓\n"


@pytest.mark.parametrize("moment", [1e300, -1e300, float("nan"), float("inf")])
def test_a_time_that_no_calendar_has_breaks_no_line(moment):
    assert text.clock(moment).count(":") == 2
    assert text.when(moment)
    assert text.duration(moment) == "-"
