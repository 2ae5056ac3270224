"""`ftui lease`: when the rented server ends, and whether everything of value is elsewhere by then."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import DoesNotFit, UsageError
from engine.text import _, duration, gigabytes, ngettext, when
from tui.output import Output

if TYPE_CHECKING:
    from engine.lease.record import Lease
    from engine.workspace import Workspace

VERBS = "set|show|check|clear|accept|disk"


def configure(parser: argparse.ArgumentParser) -> None:
    """The verbs of `ftui lease`."""
    verbs = parser.add_subparsers(dest="verb", metavar=VERBS, required=True)
    forms = _('"2026-12-31 23:59 Europe/Moscow", "in 20h", env:NAME or file:PATH')
    setting = verbs.add_parser("set", help=_("say when the server ends"))
    setting.add_argument("when", metavar="WHEN", nargs="+", help=forms)
    setting.add_argument("--force", action="store_true", help=_("also where a run must be stopped at once"))
    setting.add_argument("--dry-run", action="store_true", help=_("show the plan for it, and set nothing"))
    show = verbs.add_parser("show", help=_("how long is left, and until when it is safe to train"))
    check = verbs.add_parser("check", help=_("can this server be given back? what of value is only here"))
    check.add_argument("--all", action="store_true", help=_("also list what is safe"))
    clear = verbs.add_parser("clear", help=_("forget the lease"))
    accept = verbs.add_parser("accept", help=_("say that you have files elsewhere, as they are now"))
    accept.add_argument("path", metavar="PATH", nargs="+")
    disk = verbs.add_parser("disk", help=_("say whether a folder outlives the server"))
    disk.add_argument("path", metavar="PATH")
    disk.add_argument("kind", choices=("persistent", "temporary"))
    for verb in (setting, show, check, clear, accept, disk):
        verb.add_argument(
            "--json", action="store_true", default=argparse.SUPPRESS, help=_("one JSON document on stdout")
        )


def run(args: argparse.Namespace, out: Output) -> int:
    """Run one verb."""
    from engine.workspace import locate

    workspace = locate(args.home)
    verbs = {"set": _set, "show": _show, "check": _check, "clear": _clear, "accept": _accept, "disk": _disk}
    return verbs[args.verb](workspace, args, out)


def document(workspace: Workspace, lease: Lease | None) -> dict[str, Any]:
    """The lease and its plan; every time also in seconds from now."""
    from engine import settings
    from engine.lease import clock, schedule
    from engine.lease.autopilot import read
    from engine.lease.gather import Gatherer

    if lease is None:
        return {"lease": None, "plan": None, "runs": [], "phase": None}
    at = clock.now()
    left = lease.left(at)
    works = Gatherer(workspace).works()
    plan = schedule.plan(left.seconds, works, settings.load().lease_margin_min * 60)
    known = read(workspace) or {}
    return {
        "lease": {
            "end": at.wall + left.seconds,
            "given": lease.text,
            "source": lease.source,
            "remaining_s": left.seconds,
            "clock_moved_s": left.moved or None,
        },
        "plan": {
            **plan.to_json(),
            "safe_until": at.wall + plan.safe_s,
            "latest_stop": at.wall + plan.latest_s,
        },
        "runs": [
            {
                "run": work.run,
                "live": work.live,
                "remote": work.remote,
                "safe": work.safe,
                "missing_bytes": work.other + work.checkpoints,
                "trouble": work.trouble,
            }
            for work in works
        ],
        "phase": known.get("phase"),
        "report": known.get("report"),
    }


def _set(workspace: Workspace, args: argparse.Namespace, out: Output) -> int:
    from dataclasses import replace

    from engine import keeper
    from engine.lease import clock, record
    from engine.lease.when import parse

    at = clock.now()
    found = parse(" ".join(args.when), at.wall)
    lease = record.Lease(
        found.end, found.text, found.relative, found.source, at.wall, clock.anchored(found.end - at.wall, at)
    )
    shown = document(workspace, replace(lease))
    live = [row["run"] for row in shown["runs"] if row["live"]]
    if live and not shown["plan"]["fits"] and not args.force and not args.dry_run:
        raise DoesNotFit(
            _("{runs} would be stopped at once: the time left is too short to save everything").format(
                runs=", ".join(live[:3])
            ),
            where=when(shown["lease"]["end"]),
            fix=_("--force sets it and stops them with a save; or check the time"),
            kind="lease_short",
        )
    if not args.dry_run:
        _ask_disk(workspace, out)
        record.save(workspace, found, at)
        keeper.ensure(workspace)
    if out.as_json:
        out.json(shown)
        return 0
    if found.note:
        out.note(found.note, "warning")
    _say(shown, out)
    return 0


def _ask_disk(workspace: Workspace, out: Output) -> None:
    """Ask once whether the workspace's disk outlives the server, where neither settings nor mount say."""
    from engine.lease import disks

    if out.as_json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    if disks.persistence(workspace.root) != "unknown":
        return
    question = _("Does the disk of {path} outlive this server? [y/N] ").format(path=workspace.root)
    answer = input(question).strip().lower()
    disks.remember(workspace.root, "persistent" if answer in ("y", "yes") else "temporary")


def _show(workspace: Workspace, args: argparse.Namespace, out: Output) -> int:
    from engine.lease import record

    shown = document(workspace, record.read(workspace))
    if out.as_json:
        out.json(shown)
    else:
        _say(shown, out)
    return 0


def _say(shown: dict[str, Any], out: Output) -> None:
    from engine.lease.autopilot import explain

    lease, plan = shown["lease"], shown["plan"]
    if lease is None:
        out.line(_("no lease is set: `ftui lease set WHEN` says when this server ends"))
        return
    text = _("{when}, in {left}").format(when=when(lease["end"]), left=duration(lease["remaining_s"]))
    out.field(_("ends"), text if lease["remaining_s"] > 0 else _("it has ended"), "bold")
    if lease["clock_moved_s"]:
        moved = _("the clock was moved by {time}; the lease is counted without that").format(
            time=duration(abs(lease["clock_moved_s"]))
        )
        out.field(_("clock"), moved, "warning")
    open_runs = [row for row in shown["runs"] if row["live"] or not row["safe"]]
    if not open_runs:
        out.field(_("safe"), _("nothing runs, and everything that the backups want is proved"), "ok")
    else:
        style = "ok" if plan["fits"] else "error"
        out.field(_("safe until"), _moment(plan["safe_until"], plan["safe_s"]), style)
        out.field(_("latest"), _moment(plan["latest_stop"], plan["latest_s"]))
        if not plan["measured"]:
            out.field("", _("no upload was measured yet: the rate is a guess"), "warning")
    for row in open_runs:
        parts = [_("training") if row["live"] else _("ended")]
        if row["remote"] is None:
            parts.append(_("no remote: nothing of it is elsewhere"))
        elif row["missing_bytes"]:
            parts.append(_("{size} to send").format(size=gigabytes(row["missing_bytes"])))
        if row["trouble"]:
            parts.append(row["trouble"])
        out.field(row["run"][:10], ", ".join(parts), None if row["remote"] else "warning")
    if shown["phase"] in ("act", "ended"):
        out.field(_("now"), explain(shown["phase"]), "warning")


def _moment(at: float, seconds: float) -> str:
    if seconds < 0:
        return _("{when}: {time} ago").format(when=when(at), time=duration(-seconds))
    return _("{when}, in {left}").format(when=when(at), left=duration(seconds))


def _check(workspace: Workspace, args: argparse.Namespace, out: Output) -> int:
    from engine.lease import handback

    found = handback.check(workspace)
    if out.as_json:
        out.json(found.to_json())
        return 0 if found.safe else 1
    for line, style in handback.lines(found, everything=args.all):
        out.line(line, style)
    return 0 if found.safe else 1


def _clear(workspace: Workspace, args: argparse.Namespace, out: Output) -> int:
    from engine.lease import record

    there = record.clear(workspace)
    if out.as_json:
        out.json({"cleared": there})
    else:
        out.line(_("the lease is forgotten; nothing is stopped by itself any more") if there else _("no lease was set"))
    return 0


def _accept(workspace: Workspace, args: argparse.Namespace, out: Output) -> int:
    from engine.files import user_path
    from engine.lease import handback

    paths = [user_path(text).absolute() for text in args.path]
    for path in paths:
        if not path.exists():
            raise UsageError(_("there is no such file or folder"), where=str(path), kind="no_such_path")
    count = handback.accept(workspace, [Path(path) for path in paths])
    if out.as_json:
        out.json({"accepted": [str(path) for path in paths], "files": count})
    else:
        text = ngettext(
            "{n} file counts as safe as long as it does not change",
            "{n} files count as safe as long as they do not change",
            count,
        )
        out.line(text.format(n=count), "ok")
    return 0


def _disk(workspace: Workspace, args: argparse.Namespace, out: Output) -> int:
    from engine.files import user_path
    from engine.lease import disks

    path = user_path(args.path).absolute()
    disks.remember(path, args.kind)
    if out.as_json:
        out.json({"path": str(path), "kind": args.kind})
    else:
        words = {"persistent": _("outlives this server"), "temporary": _("goes with this server")}
        out.line(_("{path} {what}").format(path=path, what=words[args.kind]))
    return 0
