"""Messages that carry what a source read to the screens. Bursts coalesce: only the newest of a kind is handled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.message import Message

if TYPE_CHECKING:
    from textual.message_pump import MessagePump

    from tui.sources.lease_source import LeaseLine
    from tui.sources.run_listing import RunRow


class RunsChanged(Message):
    """The list of runs is no longer what it was."""

    def __init__(self, rows: tuple[RunRow, ...]) -> None:
        super().__init__()
        self.rows = rows

    def can_replace(self, message: MessagePump | Message) -> bool:
        """A newer list makes an older one that still waits pointless."""
        return isinstance(message, RunsChanged)


class LeaseChanged(Message):
    """How long the server lasts."""

    def __init__(self, line: LeaseLine) -> None:
        super().__init__()
        self.line = line

    def can_replace(self, message: MessagePump | Message) -> bool:
        """The time goes on."""
        return isinstance(message, LeaseChanged)
