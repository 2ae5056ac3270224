"""How long until it is safe: remaining bytes over the measured rate, stalls included, as a band and not one number."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import asdict, dataclass
from typing import Any

from engine.files import Lock, read_json, write_json
from engine.workspace import Workspace

WINDOW_S = 20.0
BEGUN = 1 << 20  # bytes through, before which nothing is said of the rate
SLICE_S = 2.0
SLICES = 60
NAME = "rates.json"
KEPT = 40
UNKNOWN = (
    5e6,
    25e6,
    100e6,
)  # bytes per second, where nothing was ever measured: a weak uplink, a usual one, a good one
HASH_RATE = 0.5e9
REQUEST_S = 0.15  # to ask for one object


@dataclass(frozen=True)
class Band:
    """Bytes per second: what must be reckoned with, what is likely, what it may be at best."""

    low: float
    mid: float
    high: float
    measured: bool = True

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Rate:
    """The rate of a transfer from its completed bytes over wall time."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, float]] = deque()

    def add(self, now: float, total: float) -> None:
        """Note how many bytes are through at a moment (monotonic)."""
        if self._points and now - self._points[-1][0] < SLICE_S / 4:
            return
        if len(self._points) == 1 and total < BEGUN:
            self._points.clear()  # hashing and connecting are no slow link
        self._points.append((now, total))
        while len(self._points) > 2 and now - self._points[0][0] > SLICE_S * SLICES:
            self._points.popleft()

    def band(self) -> Band | None:
        """The rate over the last 20 seconds between its slow and fast slices; None before two seconds have passed."""
        if len(self._points) < 2 or self._points[-1][0] - self._points[0][0] < SLICE_S:
            return None
        now, total = self._points[-1]
        start = next(point for point in self._points if point[0] >= now - WINDOW_S)
        if start[0] == now:
            start = self._points[-2]
        mid = max(0.0, (total - start[1]) / (now - start[0]))
        rates, mark = [], self._points[0]
        for point in self._points:
            if point[0] - mark[0] >= SLICE_S:
                rates.append((point[1] - mark[1]) / (point[0] - mark[0]))
                mark = point
        recent = sorted(rates[-15:]) or [mid]
        low = recent[len(recent) // 10]
        high = recent[-1 - len(recent) // 10]
        return Band(max(0.0, min(low, mid)), mid, max(high, mid))

    def eta(self, remaining: float) -> tuple[float, float, float] | None:
        """Seconds for the remaining bytes: at best, likely, at worst; None while nothing can be said."""
        band = self.band()
        if band is None or band.mid <= 0:
            return None
        return remaining / band.high, remaining / band.mid, remaining / max(band.low, band.mid / 10)


def remember(workspace: Workspace, remote: str, size: int, seconds: float, hashed: float | None = None) -> None:
    """Keep what an upload really took, for the forecasts of later ones."""
    if size < 1 << 20 or seconds <= 0:
        return  # too little to say anything
    path = workspace.keeper_dir / NAME
    try:
        workspace.keeper_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        with Lock(path.with_name(f".{NAME}.lock")).held():
            value = read_json(path)
            rates = value.get("rates") if isinstance(value, dict) else None
            rates = rates if isinstance(rates, list) else []
            rates.append({"time": time.time(), "remote": remote, "bytes": size, "seconds": round(seconds, 3)})
            write_json(path, {"format": 1, "rates": rates[-KEPT:]}, durable=False)
    except OSError:
        pass  # a forecast is no reason to fail


def measured(workspace: Workspace, remote: str) -> Band:
    """The band of a remote as its uploads showed it; a wide guess (`measured` False) where there were none."""
    value = read_json(workspace.keeper_dir / NAME)
    rates = []
    for entry in (value.get("rates") or []) if isinstance(value, dict) else []:
        try:
            if entry["remote"] == remote and entry["seconds"] > 0:
                rates.append(entry["bytes"] / entry["seconds"])
        except (TypeError, KeyError):
            continue
    if not rates:
        return Band(*UNKNOWN, measured=False)
    recent = sorted(rates[-10:])
    low, high = recent[0], recent[-1]
    return Band(low * 0.8 if len(recent) < 3 else low, recent[len(recent) // 2], high)


@dataclass(frozen=True)
class Forecast:
    """How long until everything wanted is proved there: at best, likely, at worst, and what the time goes to."""

    bytes: int
    files: int
    low_s: float
    mid_s: float
    high_s: float
    rate: Band

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "rate": self.rate.to_json()}


def forecast(
    size: int, files: int, rate: Band, *, unhashed: int = 0, full: bool = False, in_flight: int = 0
) -> Forecast:
    """Seconds to hash, send and prove so many bytes.

    Args:
        size: what is still to be sent.
        files: in how many files.
        rate: the remote's band.
        unhashed: how much of it must be read first (while the file before it is sent: only the slower of both counts).
        full: the policy wants everything read back.
        in_flight: bytes that may have to be sent again, in the worst case.
    """

    def seconds(speed: float, again: int) -> float:
        sending = (size + again) / max(speed, 1.0)
        back = size / max(speed, 1.0) if full else 0.0
        return max(sending, unhashed / HASH_RATE) + back + files * REQUEST_S

    return Forecast(size, files, seconds(rate.high, 0), seconds(rate.mid, 0), seconds(rate.low, in_flight), rate)
