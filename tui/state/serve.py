"""One server as the screen shows it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ServeSnapshot:
    """What is known of a server; `state` is empty where there never was one.

    Attributes:
        state: `starting`, `ready`, `unhealthy`, `restarting`, `stopping`, `stopped`, `failed` or `lost`.
        url: where it answers.
        engine: what serves it.
        tuned: the name in requests of what was trained.
        base: that of the base on the same server, where it serves it too.
        base_state: the state of the base's own server, where there is one.
        answered: requests since its start; None where it does not tell.
        running: requests under way.
        restarts: how often its supervisor had to start it again.
        model: the folder that it serves.
        adapters: the names of those on it.
        fit: engine.serve.fit's, as it was when it started.
        error: the last words of its log, where it failed.
        checked: check.json.
    """

    state: str = ""
    url: str = ""
    engine: str = ""
    tuned: str = ""
    base: str | None = None
    base_state: str = ""
    answered: float | None = None
    running: float | None = None
    restarts: int = 0
    model: str = ""
    adapters: tuple[str, ...] = ()
    fit: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    checked: dict[str, Any] = field(default_factory=dict)

    @property
    def live(self) -> bool:
        """Whether there is something to stop."""
        return self.state in ("starting", "ready", "unhealthy", "restarting", "stopping")
