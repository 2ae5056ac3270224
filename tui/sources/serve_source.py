"""Reads the folder of a server, and asks it for its counters."""

from __future__ import annotations

from engine.errors import FtuiError
from engine.files import read_json
from engine.serve import offer
from engine.serve.check import Client
from engine.serve.launch import Served
from engine.workspace import Workspace
from tui.state.serve import ServeSnapshot

_ANSWERED = ("vllm:request_success_total", "ftui:requests_total")
_RUNNING = ("vllm:num_requests_running", "ftui:requests_running")


class ServeSource:
    """Follows one server; to be used from one thread."""

    def __init__(self, workspace: Workspace, name: str) -> None:
        self._workspace, self.name = workspace, name

    def poll(self) -> ServeSnapshot:
        """The server now."""
        served = offer.existing(self._workspace, self.name)
        if served is None:
            return ServeSnapshot()
        spec, state = served.spec, served.state()
        error = state.get("error") or {}
        lines = error.get("lines") or [] if isinstance(error, dict) else []
        checked = read_json(served.folder / "check.json")
        beside = offer.existing(self._workspace, offer.base_name(served.name))
        ready = state.get("state") == "ready"
        counters = self._counters(served) if ready else {}
        return ServeSnapshot(
            state=str(state.get("state") or ""),
            url=served.url,
            engine=str(spec.get("engine") or ""),
            tuned=str(spec.get("tuned") or ""),
            base=spec.get("served") if spec.get("served") != spec.get("tuned") else None,
            base_state=str(beside.state().get("state") or "") if beside is not None else "",
            answered=next((counters[name] for name in _ANSWERED if name in counters), None),
            running=next((counters[name] for name in _RUNNING if name in counters), None),
            restarts=int(state.get("restarts") or 0),
            model=str(spec.get("model") or ""),
            adapters=tuple(str(adapter.get("name")) for adapter in spec.get("adapters") or ()),
            fit=spec.get("fit") or {},
            error=_telling(lines) if state.get("state") in ("failed", "restarting") else "",
            checked=checked if isinstance(checked, dict) else {},
        )

    @staticmethod
    def _counters(served: Served) -> dict[str, float]:
        try:
            with Client(served) as client:
                return client.metrics()
        except (OSError, FtuiError):
            return {}


def _telling(lines: list[str]) -> str:
    found = [line for line in lines if "rror" in line] or lines
    return found[-1].strip()[:300] if found else ""
