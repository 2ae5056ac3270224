"""Notices in words: a title and a line or two."""

from __future__ import annotations

from typing import Any

from engine.text import _, duration, gigabytes, number

KINDS = (
    "run_done", "run_stopped", "run_failed", "lost", "eval_rising", "disk_filling", "gpus_idle",
    "backup_stalled", "backup_auth", "backup_failed", "backup_ok", "backup_unpaused",
    "lease_soon", "lease_stop", "lease_safe", "lease_ended", "lease_unreadable", "clock_moved", "test",
)  # fmt: skip


def title(notice: dict[str, Any]) -> str:
    """What happened, in one line."""
    run = str(notice.get("run") or "")
    texts = {
        "run_done": _("{run} is done"),
        "run_stopped": _("{run} stopped"),
        "run_failed": _("{run} failed"),
        "lost": _("{run} is lost: its supervisor is gone"),
        "eval_rising": _("{run}: the evaluation loss rises"),
        "disk_filling": _("a disk fills up"),
        "gpus_idle": _("the GPUs idle while the server is paid for"),
        "backup_stalled": _("{run}: the backup stands still"),
        "backup_auth": _("{run}: the backup's credentials are refused"),
        "backup_failed": _("{run}: the backup failed"),
        "backup_ok": _("{run}: the backup goes on"),
        "backup_unpaused": _("backups go on although they were paused: the server ends"),
        "lease_soon": _("the server ends soon"),
        "lease_stop": _("the server ends: runs are stopped with a save"),
        "lease_safe": _("everything is safe elsewhere; the server can be given back"),
        "lease_ended": _("the lease has ended"),
        "lease_unreadable": _("the lease cannot be read"),
        "clock_moved": _("the clock of the server was moved"),
        "test": _("a test notice"),
    }
    return texts.get(str(notice.get("kind")), str(notice.get("kind"))).format(run=run)


def body(notice: dict[str, Any]) -> str:
    """What there is to know of it."""
    kind, lines = notice.get("kind"), []
    if notice.get("reason"):
        lines.append(str(notice["reason"]))
    if kind == "lease_soon":
        lines.append(_("stops in {time}; the server ends in {end}").format(
            time=duration(_number(notice, "seconds")), end=duration(_number(notice, "remaining_s"))
        ))  # fmt: skip
        if notice.get("no_remote"):
            lines.append(_("without a remote: {runs}").format(runs=", ".join(map(str, notice["no_remote"]))))
        lines += [str(line) for line in notice.get("trouble") or ()]
    if kind in ("lease_stop", "lease_soon") and notice.get("runs"):
        lines.append(_("runs: {runs}").format(runs=", ".join(map(str, notice["runs"]))))
    if kind == "lease_ended":
        for name, text in (("unsafe", _("not safe: {runs}")), ("safe", _("safe: {runs}"))):
            if notice.get(name):
                lines.append(text.format(runs=", ".join(map(str, notice[name]))))
    if kind == "clock_moved":
        lines.append(_("by {time}; the lease is counted without that").format(
            time=duration(abs(_number(notice, "seconds")))
        ))  # fmt: skip
    if kind == "gpus_idle":
        lines.append(_("for {time}").format(time=duration(_number(notice, "seconds"))))
    if kind == "disk_filling":
        lines.append(_("{path}: {free} free").format(path=notice.get("path"), free=gigabytes(_number(notice, "free"))))
    if kind == "eval_rising":
        lines.append(_("{value}, best {best} at step {step}").format(
            value=number(_number(notice, "value"), 3), best=number(_number(notice, "best"), 3),
            step=number(_number(notice, "best_step")),
        ))  # fmt: skip
    if kind in ("run_done", "run_stopped", "run_failed") and notice.get("step") is not None:
        lines.append(_("at step {step}").format(step=number(_number(notice, "step"))))
    return "\n".join(lines)


def _number(notice: dict[str, Any], key: str) -> float:
    value = notice.get(key)
    return float(value) if isinstance(value, int | float) else 0.0
