"""Where notices go: `notices` beside the settings, mode 0600 since its addresses hold tokens; sent with apprise.

One address a line, as apprise writes them (ntfy://topic, tgram://token/chat, mailto://..., json://host). Kinds before
an `=` keep it to these: `lease_soon,run_failed=ntfy://topic`. `#` begins a comment.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine import journal, settings
from engine.errors import FtuiError, UsageError
from engine.notices.words import KINDS, body, title
from engine.text import _
from engine.workspace import Workspace

NAME = "notices"
TAGGED = re.compile(r"([a-z_, ]+)=\s*(?=[a-zA-Z][\w+.-]*://)")
RETRY_S = (5.0, 30.0, 120.0)
KEPT = 200
log = logging.getLogger("engine.keeper")


@dataclass(frozen=True)
class Channel:
    """One address; `kinds` empty: every kind. `repr` does not show the address."""

    url: str
    kinds: frozenset[str] = frozenset()

    def wants(self, kind: str) -> bool:
        return not self.kinds or kind in self.kinds

    @property
    def name(self) -> str:
        """Its kind without what is secret in it."""
        return self.url.partition("://")[0] + "://…"

    def __repr__(self) -> str:
        return f"Channel({self.name})"


def path() -> Path:
    """Where the addresses stand."""
    return settings.path().with_name(NAME)


def read() -> list[Channel]:
    """The channels; [] where there are none.

    Raises:
        UsageError: a line is wrong, or others could read the file.
    """
    try:
        text = path().read_text(encoding="utf-8")
        mode = path().stat().st_mode
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(_("the channels cannot be read: {reason}").format(reason=error), where=str(path())) from None
    if mode & 0o077:
        raise UsageError(
            _("others can read the addresses of notices, which hold tokens"),
            where=str(path()),
            fix=f"chmod 600 {path()}",
            kind="notices",
        )
    found = []
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        if not line or line.startswith("#"):
            continue
        tagged = TAGGED.match(line)
        kinds = frozenset(part.strip() for part in tagged[1].split(",") if part.strip()) if tagged else frozenset()
        url = line[tagged.end() :] if tagged else line
        where = f"{path()}:{number}"
        if wrong := sorted(kinds - set(KINDS)):
            fix = _("known: {names}").format(names=", ".join(KINDS))
            raise UsageError(
                _("there is no notice '{name}'").format(name=wrong[0]), where=where, fix=fix, kind="notices"
            )
        if "://" not in url:
            raise UsageError(_("this is no address"), where=where, fix=_("write ntfy://topic"), kind="notices")
        found.append(Channel(url, kinds))
    return found


def send(channels: Sequence[Channel], notice: dict[str, Any]) -> list[str]:
    """Send one notice; the names of the channels that did not take it.

    Raises:
        FtuiError: apprise is not installed.
    """
    try:
        import apprise
    except ImportError:
        raise FtuiError(
            _("notices need apprise"), fix=_("pip install apprise, in ftui's own environment"), kind="no_apprise"
        ) from None
    logging.getLogger("apprise").setLevel(logging.CRITICAL)  # it prints addresses
    failed = []
    for channel in channels:
        sender = apprise.Apprise()
        if not sender.add(channel.url) or not sender.notify(
            title=f"ftui: {title(notice)}", body=body(notice) or title(notice)
        ):
            failed.append(channel.name)
    return failed


class Courier:
    """Sends what is appended to notices.jsonl from now on, in a thread: a slow channel holds nothing up."""

    def __init__(self, workspace: Workspace, deliver: Callable[..., list[str]] = send) -> None:
        self.reader = journal.JournalReader(workspace.keeper_dir / "notices.jsonl")
        try:
            self.reader.offset = self.reader.path.stat().st_size
        except OSError:
            pass
        self.deliver = deliver
        self._waiting: list[tuple[float, int, Channel, dict[str, Any]]] = []
        self._thread: threading.Thread | None = None

    def look(self) -> None:
        """Look once for new notices, and begin to send them."""
        new = [event for event in self.reader.poll() if event.get("event") == "notice"]
        if new:
            try:
                channels = read()
            except FtuiError as error:
                log.warning("%s: %s", error.where, error.what)
                channels = []
            for notice in new:
                for channel in channels:
                    if channel.wants(str(notice.get("kind"))):
                        self._waiting.append((0.0, 0, channel, notice))
            del self._waiting[:-KEPT]
        if self._waiting and (self._thread is None or not self._thread.is_alive()):
            now = time.monotonic()
            due = [entry for entry in self._waiting if entry[0] <= now]
            if due:
                self._waiting = [entry for entry in self._waiting if entry[0] > now]
                self._thread = threading.Thread(target=self._send, args=(due,), name="notices", daemon=True)
                self._thread.start()

    def _send(self, due: list[tuple[float, int, Channel, dict[str, Any]]]) -> None:
        for _at, tries, channel, notice in due:
            try:
                failed = self.deliver([channel], notice)
            except FtuiError as error:
                log.warning("%s; %s", error.what, error.fix)
                return
            except Exception as error:  # noqa: BLE001 - a channel of any kind; its text may hold the address
                log.warning("%s: %s", channel.name, type(error).__name__)
                failed = [channel.name]
            if failed and tries < len(RETRY_S):
                self._waiting.append((time.monotonic() + RETRY_S[tries], tries + 1, channel, notice))
            elif failed:
                log.warning("%s did not take the notice %s", channel.name, notice.get("kind"))
