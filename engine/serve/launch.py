"""Starts, finds and stops servers: one folder each under <home>/serve/."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import FtuiError, UsageError
from engine.files import read_json, write_atomic, write_json
from engine.process import ProcessId
from engine.process.daemon import daemonize, own_environment
from engine.run.gpus import Placement, place
from engine.serve import engines, fit
from engine.serve.engines import Engine
from engine.serve.target import Target
from engine.text import _
from engine.workspace import Workspace

FIRST_PORT = 8000
FORMAT = 1
LIVE = ("starting", "ready", "unhealthy", "restarting", "stopping")
STOP_S = 40.0


@dataclass(frozen=True)
class Served:
    """A server's folder."""

    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def spec(self) -> dict[str, Any]:
        """What it was started with."""
        document = read_json(self.folder / "spec.json")
        return document if isinstance(document, dict) and _is_spec(document) else {}

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    @property
    def key_file(self) -> Path:
        return self.folder / "key"

    @property
    def key(self) -> str:
        return self.key_file.read_text().strip()

    @property
    def url(self) -> str:
        """Where it answers."""
        spec = self.spec
        return f"http://{spec.get('host')}:{spec.get('port')}"

    def state(self) -> dict[str, Any]:
        """state.json; `lost` where its supervisor is gone without having said so."""
        document = read_json(self.folder / "state.json")
        if not isinstance(document, dict) or not isinstance(document.get("state"), str):
            return {"state": "lost"}
        state: dict[str, Any] = document
        if state.get("state") in LIVE and not self._alive(state):
            return {**state, "state": "lost"}
        return state

    @property
    def live(self) -> bool:
        return self.state()["state"] in LIVE

    @staticmethod
    def _alive(state: dict[str, Any]) -> bool:
        try:
            process = ProcessId.from_json(state["supervisor"])
            return process is not None and process.alive()
        except (KeyError, TypeError, ValueError):
            return False


def _is_spec(document: dict[str, Any]) -> bool:
    """Whether a spec.json says what is needed of a server, in the right kinds."""
    texts = all(isinstance(document.get(key), str) for key in ("engine", "host", "model", "served", "tuned"))
    adapters = document.get("adapters")
    return (
        texts
        and isinstance(document.get("port"), int)
        and isinstance(document.get("fit"), dict)
        and isinstance(document.get("argv"), list)
        and isinstance(document.get("env"), dict)
        and isinstance(adapters, list)
        and all(isinstance(adapter, dict) and isinstance(adapter.get("name"), str) for adapter in adapters)
    )


@dataclass(frozen=True)
class Prepared:
    """Everything decided about a server before it starts."""

    target: Target
    engine: Engine
    argv: list[str]
    env: dict[str, str]
    fit: fit.Fit
    dtype: str
    host: str
    port: int
    placement: Placement


def folder_of(workspace: Workspace) -> Path:
    """Where the servers' folders are."""
    return workspace.root / "serve"


def listing(workspace: Workspace) -> list[Served]:
    """All servers of a workspace, by name."""
    with contextlib.suppress(OSError):
        return [served for path in sorted(folder_of(workspace).iterdir()) if (served := Served(path)).spec]
    return []


def find(workspace: Workspace, name: str) -> Served:
    """A server by its name, or by that of its run.

    Raises:
        UsageError: there is none.
    """
    for served in listing(workspace):
        if name in (served.name, served.spec.get("run")):
            return served
    raise UsageError(
        _("no server of {name}").format(name=name),
        fix=_("`ftui serve --list` shows them"),
        kind="no_such_server",
    )


def free_port(host: str, wanted: int | None) -> int:
    """The port to serve on: the one asked for, or the first free one from 8000.

    Raises:
        FtuiError: it is in use.
    """
    for port in (wanted,) if wanted else range(FIRST_PORT, FIRST_PORT + 100):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind((host, port))
                return port
    raise FtuiError(
        _("port {port} of {host} is in use").format(port=wanted or FIRST_PORT, host=host),
        where="--port",
        fix=_("give another one with --port, or stop what uses it (`ss -ltnp` shows it)"),
        kind="port_in_use",
    )


def prepare(
    workspace: Workspace,
    target: Target,
    engine: Engine,
    *,
    host: str,
    port: int | None,
    max_length: int | None,
    gpus: int | None,
    extra: list[str],
) -> Prepared:
    """Decide how a target is served here; the GPUs are locked until `placement.release()`.

    Raises:
        DoesNotFit: too few free cards, or too little memory.
        FtuiError: the port is in use.
    """
    import psutil

    engines.require(engine, target.config)
    port = free_port(host, port)
    placement = place(workspace, count=gpus)
    try:
        on_cpu = not placement.gpus
        dtype = engines.dtype_of(target.config, on_cpu=on_cpu)
        cards = [card.memory_total or 0 for card in placement.cards]
        room = fit.check(
            target.model, target.config, dtype, cards, host=psutil.virtual_memory().available, wanted=max_length
        )
        used = tuple(placement.gpus[: room.tensor_parallel]) if cards else ()
        argv = engines.command(engine, target, host=host, port=port, dtype=dtype, fit=room, on_cpu=on_cpu, extra=extra)
        env = engines.environment(engine, gpus=used, fit=room)
    except BaseException:
        placement.release()
        raise
    return Prepared(target, engine, argv, env, room, dtype, host, port, placement)


def start(workspace: Workspace, prepared: Prepared) -> Served:
    """Start a server; it outlives the caller. Returns as soon as its supervisor runs.

    Raises:
        FtuiError: a server of that name runs, or the supervisor did not start.
    """
    target = prepared.target
    served = Served(folder_of(workspace) / target.name)
    if served.live:
        raise FtuiError(
            _("{name} is being served already, at {url}").format(name=target.name, url=served.url),
            where=str(served.folder),
            fix=_("`ftui serve {name} --stop` ends it").format(name=target.name),
            kind="already_running",
        )
    served.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    served.folder.chmod(0o700)
    for name in ("state.json", "check.json"):
        (served.folder / name).unlink(missing_ok=True)
    write_atomic(served.key_file, f"ftui-{secrets.token_urlsafe(24)}\n".encode(), mode=0o600)
    spec = {
        "format": FORMAT,
        "name": target.name,
        "run": target.run.name if target.run is not None else None,
        "step": target.step,
        "engine": prepared.engine.name,
        "host": prepared.host,
        "port": prepared.port,
        "model": str(target.model),
        "served": target.served,
        "adapters": [{"name": a.name, "path": str(a.path), "rank": a.rank} for a in target.adapters],
        "tuned": target.tuned,
        "dtype": prepared.dtype,
        "fit": prepared.fit.to_json(),
        "gpus": list(prepared.placement.gpus),
        "argv": prepared.argv,
        "env": changed(prepared.env),
        "key_variable": engines.key_variable(prepared.engine),
        "start_timeout": engines.START_S[prepared.engine.name],
    }
    write_json(served.folder / "spec.json", spec)
    descriptors = [lock.fileno() for lock in prepared.placement.locks]
    try:
        daemonize(
            [sys.executable, "-m", "engine.serve", str(served.folder)],
            name=_("the server's supervisor"),
            env=own_environment(),
            log=served.folder / "supervisor.log",
            pass_fds=descriptors,
        )
    finally:
        prepared.placement.release()
    return served


def changed(env: dict[str, str]) -> dict[str, str]:
    """What a server's environment has beyond this process's own: only that is written down."""
    return {key: value for key, value in env.items() if os.environ.get(key) != value and "KEY" not in key.upper()}


def stop(served: Served, *, wait: float = STOP_S) -> bool:
    """End a server; whether it ended within `wait` seconds."""
    state = served.state()
    if state["state"] not in LIVE:
        return True
    supervisor = ProcessId.from_json(state["supervisor"])
    if supervisor is not None:
        supervisor.send(signal.SIGTERM)
    deadline = time.monotonic() + wait
    while time.monotonic() < deadline:
        if not served.live:
            return True
        time.sleep(0.1)
    return False
