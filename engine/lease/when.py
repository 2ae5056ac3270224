"""When a lease ends, as people and providers write it."""

from __future__ import annotations

import datetime
import os
import re
from dataclasses import dataclass
from pathlib import Path

from engine.errors import UsageError
from engine.text import _

LONGEST_S = 5 * 366 * 86400.0
UNITS = {
    "s": 1.0,
    "sec": 1.0,
    "m": 60.0,
    "min": 60.0,
    "minute": 60.0,
    "h": 3600.0,
    "hour": 3600.0,
    "d": 86400.0,
    "day": 86400.0,
}
UNITS |= {"w": 7 * 86400.0, "week": 7 * 86400.0}
PART = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)[\s,]*")
MOMENT = re.compile(
    r"(?:(?P<date>\d{4}-\d{2}-\d{2})(?:[T ]\s*(?P<time>\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?))?"
    r"|(?P<alone>\d{1,2}:\d{2}))\s*(?P<zone>\S+)?\Z"
)
OFFSET = re.compile(r"(?:UTC|GMT)?([+-])(\d{1,2})(?::?(\d{2}))?\Z")
LARGEST_FILE = 4096


@dataclass(frozen=True)
class When:
    """An end. `relative`: it was given as a duration; `source` is where else it was read, to be read again."""

    end: float
    text: str
    relative: bool = False
    source: str | None = None
    note: str | None = None


def parse(text: str, now: float) -> When:
    """The end that a text names: `2026-12-31 23:59 Europe/Moscow`, `23:59`, `in 20h`, `env:NAME`, `file:PATH`.

    Raises:
        UsageError: it names none, or one that is past or years away.
    """
    words = " ".join(text.split())
    kind, _colon, place = words.partition(":")
    if kind in ("env", "file") and place:
        return from_source(words, now)
    if words.lower().startswith("in "):
        return _checked(When(now + duration(words[3:]), words, relative=True), now)
    return _checked(_moment(words, now), now)


def from_source(source: str, now: float) -> When:
    """The end that a provider left in an environment variable (`env:NAME`) or a file (`file:PATH`).

    Only a moment: a duration would begin anew at each reading.

    Raises:
        UsageError: there is none.
    """
    kind, _colon, place = source.partition(":")
    if kind == "env":
        content = os.environ.get(place)
        if content is None:
            raise _wrong(_("the variable {name} is not set").format(name=place), source)
    else:
        try:
            with open(Path(place).expanduser(), encoding="utf-8") as file:
                content = file.read(LARGEST_FILE)
        except (OSError, UnicodeDecodeError, RuntimeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise _wrong(_("the file cannot be read: {reason}").format(reason=reason), source) from None
    found = _moment(" ".join(content.split()), now, source)
    return _checked(When(found.end, found.text, source=source, note=found.note), now)


def duration(text: str) -> float:
    """Seconds from `20h`, `6d 3h`, `90 min`.

    Raises:
        UsageError: it is no duration.
    """
    rest, seconds = text.strip().lower(), 0.0
    while rest:
        part = PART.match(rest)
        unit = None if part is None else UNITS.get(part[2]) or UNITS.get(part[2].rstrip("s"))
        if part is None or unit is None:
            raise _wrong(
                _("'{text}' is not a duration").format(text=text.strip()[:40]), text, _("write in 20h, in 6d 3h")
            )
        seconds += float(part[1]) * unit
        rest = rest[part.end() :]
    if not seconds:
        raise _wrong(_("'{text}' is not a duration").format(text=text.strip()[:40]), text, _("write in 20h, in 6d 3h"))
    return seconds


def _moment(text: str, now: float, where: str | None = None) -> When:
    if re.fullmatch(r"\d{9,14}(?:\.\d+)?", text):  # seconds or milliseconds since the epoch
        value = float(text)
        return When(value / 1000 if value > 1e11 else value, text)
    match = MOMENT.match(text)
    if match is None:
        raise _wrong(_("'{text}' is not a moment").format(text=text[:60]), where or text)
    zone = match["zone"] or ""
    time_text = match["time"] or match["alone"]
    if match["date"] and not time_text:  # the earliest that it can mean
        time_text = "00:00"
    if zone == "Z" or zone.upper() in ("UTC", "GMT"):
        tz: datetime.tzinfo | None = datetime.UTC
    elif offset := OFFSET.match(zone):
        tz = _offset(offset, where or text)
    else:
        tz = _zone(zone, where or text) if zone else None
    try:
        clock = datetime.time.fromisoformat(time_text if len(time_text.split(":")[0]) == 2 else f"0{time_text}")
        today = datetime.datetime.fromtimestamp(now, tz).date()
        day = datetime.date.fromisoformat(match["date"]) if match["date"] else today
        naive = datetime.datetime.combine(day, clock)
        if match["date"] is None and _stamp(naive, tz)[0] <= now:
            naive += datetime.timedelta(days=1)
        end, note = _stamp(naive, tz)
    except (ValueError, OverflowError, OSError):
        raise _wrong(_("'{text}' is not a moment").format(text=text[:60]), where or text) from None
    return When(end, text, note=note)


def _stamp(naive: datetime.datetime, tz: datetime.tzinfo | None) -> tuple[float, str | None]:
    """The moment, the earlier one where the clocks are set back; and a note where it is not one moment."""
    stamps = [naive.replace(tzinfo=tz, fold=fold).timestamp() for fold in (0, 1)]
    if stamps[0] == stamps[1]:
        return stamps[0], None
    return min(stamps), _("the clocks change around that hour: the earlier moment counts")


def _offset(match: re.Match[str], where: str) -> datetime.timezone:
    minutes = int(match[2]) * 60 + int(match[3] or 0)
    if minutes >= 24 * 60 or int(match[3] or 0) > 59:
        raise _wrong(_("'{zone}' is not a time zone").format(zone=match[0]), where)
    return datetime.timezone(datetime.timedelta(minutes=-minutes if match[1] == "-" else minutes))


def _zone(name: str, where: str) -> datetime.tzinfo:
    from zoneinfo import ZoneInfo, available_timezones

    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):
        import difflib

        close = difflib.get_close_matches(name[:60], available_timezones(), n=1)
        fix = _("did you mean '{name}'?").format(name=close[0]) if close else _("write Europe/Moscow, +03:00 or UTC")
        raise _wrong(_("'{zone}' is not a time zone").format(zone=name[:60]), where, fix) from None


def _checked(found: When, now: float) -> When:
    if found.end <= now:
        raise _wrong(_("that moment is past"), found.source or found.text, _("give the end of the lease"))
    if found.end - now > LONGEST_S:
        raise _wrong(_("that is more than five years away"), found.source or found.text, _("check the year"))
    return found


def _wrong(what: str, where: str, fix: str | None = None) -> UsageError:
    forms = _('write "2026-12-31 23:59 Europe/Moscow", "in 20h", env:NAME or file:PATH')
    return UsageError(what, where=where[:200], fix=fix or forms, kind="bad_lease")
