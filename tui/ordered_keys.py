"""Keys act one after another: what is typed ahead lands where it was meant to.

Textual hands each key at once to the widget that has the focus, and acts on it once it has come up through all the
widgets around that one. Until then the next keys are on their way already: text typed right after a tab would land in
the field before it, and text typed right after the key that opens a form would press keys of the screen below it.
"""

from __future__ import annotations

from collections import deque
from functools import partial

from textual import events
from textual.app import App
from textual.message import Message
from textual.screen import Screen

LOST_S = 1.0  # what the widget with the focus keeps for longer (it is gone, or hangs) holds up no further key


class KeyDone(Message, bubble=True):
    """Follows a key on its way up to the app: where it has been, the key has been acted upon."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class OrderedKeysApp(App[None]):
    """Hands out a key or a pasted text when the one before has been acted upon and its screen is ready."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting_keys: deque[events.Event] = deque()
        self._key_under_way = False
        self._key_number = 0
        self._ready_screen: Screen[object] | None = None

    async def on_event(self, event: events.Event) -> None:
        """Queue what comes from the keyboard; everything else is Textual's."""
        if not isinstance(event, events.Key | events.Paste) or event.is_forwarded:
            await super().on_event(event)
            return
        self._waiting_keys.append(event)
        if self._key_under_way:
            self._limit_wait()
        else:
            await self._next_key(self._key_number)

    async def _next_key(self, after: int) -> None:
        """Hand out the next key, once for each key before it."""
        if after != self._key_number:
            return
        self._key_under_way = bool(self._waiting_keys)
        if not self._waiting_keys:
            return
        self._key_number += 1
        screen = self.screen
        if screen is not self._ready_screen and screen.call_later(self._screen_ready, screen, self._key_number):
            self._limit_wait()
            return
        target = self.focused or screen
        await super().on_event(self._waiting_keys.popleft())
        if self._waiting_keys:
            self._limit_wait()
        if not target.post_message(KeyDone(self._key_number)):
            await self._next_key(self._key_number)

    def _limit_wait(self) -> None:
        self.set_timer(LOST_S, partial(self._next_key, self._key_number))

    def _screen_ready(self, screen: Screen[object], number: int) -> None:
        """Comes after what mounts the screen and gives a widget the focus."""
        self._ready_screen = screen
        self.post_message(KeyDone(number))

    def on_key_done(self, message: KeyDone) -> None:
        """To the next key, behind what the one before left the app to do."""
        self.call_later(self._next_key, message.number)
