"""Text for people: gettext's `_` for words, Babel for numbers, dates and money.

Both load on first use: `ftui --help` must not pay for a locale database.
"""

from __future__ import annotations

import datetime
import functools
import gettext
import locale as _locale
import os
import re
from pathlib import Path

DOMAIN = "ftui"
LARGEST_PLAIN = 1e15
LOCALES = Path(__file__).parent / "locales"
_forced: str | None = None


def set_language(language: str | None) -> None:
    """Use `language` (for example "ru") instead of the environment's; None returns to that."""
    global _forced
    _forced = language
    _catalogue.cache_clear()
    _babel.cache_clear()


def language() -> str:
    """The language tag in force, for example "en" or "ru_RU"."""
    if _forced:
        return _forced
    for name in ("LANGUAGE", "LC_ALL", "LC_MESSAGES", "LANG"):
        value = os.environ.get(name, "").split(":")[0].split(".")[0].split("@")[0]
        if value and value not in ("C", "POSIX"):
            return _locale.normalize(value).split(".")[0] or value
    return "en"


@functools.cache
def _catalogue() -> gettext.NullTranslations:
    return gettext.translation(DOMAIN, LOCALES, languages=[language()], fallback=True)


def _(message: str) -> str:
    """The message in the user's language."""
    return _catalogue().gettext(message)


def ngettext(singular: str, plural: str, n: int) -> str:
    """The message in the user's language, in the form that fits `n`."""
    return _catalogue().ngettext(singular, plural, n)


@functools.cache
def _babel() -> str:
    from babel import Locale, UnknownLocaleError

    try:
        return str(Locale.parse(language()))
    except (UnknownLocaleError, ValueError):
        return "en"


@functools.cache
def _escapes() -> re.Pattern[str]:
    return re.compile(
        r"\x1b\[[0-?]*[ -/]*[@-~]"  # colors, cursor moves
        r"|\x1b[\]P^_X][^\x07\x1b]*(?:\x07|\x1b\\|$)"  # titles, clipboard, other strings for the terminal
        r"|\x1b[ -/]*[0-~]?"
        r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
    )


def printable(text: str) -> str:
    """The text without what would act on a terminal: errors and logs quote what other programs wrote."""
    return text if text.isprintable() else _escapes().sub("", text)


def number(value: float, digits: int = 0) -> str:
    """A number with the locale's separators and exactly `digits` decimals; a loss that explodes as 1.2e+30."""
    from babel.numbers import format_decimal

    if not abs(value) < LARGEST_PLAIN:  # neither a NaN nor what has more digits than a decimal keeps
        return f"{value:.1e}"
    pattern = "#,##0" + ("." + "0" * digits if digits else "")
    return str(format_decimal(value, format=pattern, locale=_babel()))


def money(amount: float, currency: str) -> str:
    """An amount with its currency, for example $14.80."""
    from babel.numbers import format_currency

    return str(format_currency(amount, currency, locale=_babel()))


def gigabytes(size: float, digits: int = 1) -> str:
    """A size in bytes as GB (10^9) or, when small, as MB or kB."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(size) >= scale:
            return f"{number(size / scale, digits)} {unit}"
    return f"{number(size)} B"


def duration(seconds: float) -> str:
    """A duration in the two largest units that matter: `3 h 21`, `4 min 05`, `12 s`."""
    if not abs(seconds) < LARGEST_PLAIN:
        return "-"
    total = max(0, round(seconds))
    if total < 60:
        return _("{s} s").format(s=total)
    if total < 3600:
        return _("{m} min {s:02d}").format(m=total // 60, s=total % 60)
    if total < 48 * 3600:
        return _("{h} h {m:02d}").format(h=total // 3600, m=total % 3600 // 60)
    return _("{d} d {h:02d} h").format(d=total // 86400, h=total % 86400 // 3600)


def clock(timestamp: float) -> str:
    """Local time of day, HH:MM:SS."""
    return _moment(timestamp).strftime("%H:%M:%S")


def when(timestamp: float) -> str:
    """Local date and time in the user's language."""
    from babel.dates import format_datetime

    return str(format_datetime(_moment(timestamp), "EEE d MMM HH:mm", locale=_babel()))


def _moment(timestamp: float) -> datetime.datetime:
    """Local time; the epoch for what no calendar has (a damaged file must not end a screen)."""
    try:
        return datetime.datetime.fromtimestamp(timestamp).astimezone()
    except (ValueError, OverflowError, OSError):
        return datetime.datetime.fromtimestamp(0).astimezone()
