"""Why an attempt failed, in one sentence: from the ranks' own reports, else from the launcher's log."""

from __future__ import annotations

import os
import re
import signal
from typing import Any

from engine.files import read_json
from engine.process.child import Exit
from engine.process.daemon import last_lines
from engine.text import _
from engine.workspace import RunFolder

# What comes out the same however often it is tried.
FINAL_KINDS = frozenset(
    {"usage", "recipe", "data", "not_supported", "unsupported", "does_not_fit", "gate", "loss_not_finite"}
)
FULL_BELOW = 64 * 1024
FINAL_CODES = frozenset({2, 3, 4})
_NO_MODULE = re.compile(
    r"Error while finding module .*No module named '(torch|engine)\b|: No module named (torch|engine)\b"
)
_EXIT_CODE = re.compile(r"exitcode\s*:\s*(-?\d+)")
_EXCEPTION = re.compile(r"^(?:\[rank\d+\]:\s*)?([A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)): (.+)$")


def explain(run: RunFolder, attempt: int, ended: Exit) -> dict[str, Any]:
    """The `error` of state.json for an attempt that ended badly."""
    reports = [
        report
        for path in run.logs.glob("rank-*.error.json")
        if isinstance(report := read_json(path), dict) and report.get("attempt") == attempt and report.get("message")
    ]
    if reports:
        first = min(reports, key=lambda report: report.get("time") or 0.0)  # the others fell over it
        found = {
            "kind": first.get("kind") or "failed",
            "message": first["message"],
            "where": first.get("where") or str(run.logs),
            "fix": first.get("fix"),
            "exit_code": first.get("exit_code") or 1,
        }
        return found | {key: first[key] for key in ("rank", "phase", "memory") if first.get(key) is not None}
    return _from_log(run, ended)


def _from_log(run: RunFolder, ended: Exit) -> dict[str, Any]:
    log = run.logs / "launcher.log"
    lines = last_lines(log, 200)
    if any(_NO_MODULE.search(line) for line in lines):
        return {
            "kind": "environment",
            "message": _("the training environment lacks torch or this package"),
            "where": str(log),
            "fix": _("set FTUI_PYTHON to the Python of an environment with torch; `ftui doctor` checks it"),
            "exit_code": 2,
        }
    if _is_full(run):
        return {
            "kind": "disk_full",
            "message": _("the disk is full"),
            "where": str(run.path),
            "fix": _("free space there, then `ftui resume {run}`").format(run=run.name),
            "exit_code": 1,
        }
    codes = [int(found[1]) for line in lines if (found := _EXIT_CODE.search(line))]
    killed = next((-code for code in codes if code < 0), ended.signal)
    fix: str | None = _("read the log for the details")
    if killed is not None:
        name = signal.Signals(killed).name if killed in signal.Signals.__members__.values() else str(killed)
        message = _("a training process was ended by {signal}").format(signal=name)
        if killed == signal.SIGKILL:
            fix = _("if nobody sent it, the kernel ran out of memory: `dmesg | grep -i oom` says so")
    else:
        said = next((f"{found[1]}: {found[2]}" for line in reversed(lines) if (found := _EXCEPTION.match(line))), None)
        message = said or _("training ended with exit code {code} and gave no reason").format(code=ended.code)
    return {"kind": "crash", "message": message[:500], "where": str(log), "fix": fix, "exit_code": 1}


def _is_full(run: RunFolder) -> bool:
    """Whether there is no room for so much as a line: then the ranks could not say why they failed."""
    try:
        info = os.statvfs(run.path)
    except OSError:
        return False
    return info.f_bavail * info.f_frsize < FULL_BELOW or (info.f_files > 0 and info.f_favail == 0)


def is_final(error: dict[str, Any]) -> bool:
    """Whether starting again cannot help."""
    return error.get("kind") in FINAL_KINDS or error.get("exit_code") in FINAL_CODES
