"""`ftui backup`: copies of a run on a remote, proved there, and back from it."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import FtuiError, UsageError
from engine.text import _
from tui.output import Output

if TYPE_CHECKING:
    from engine.backup.policy import Policy
    from engine.backup.rclone import Daemon
    from engine.workspace import RunFolder, Workspace

VERBS = "setup|now|status|verify|prune|restore|limit|pause|go"


def configure(parser: argparse.ArgumentParser) -> None:
    """The verbs of `ftui backup`."""
    verbs = parser.add_subparsers(dest="verb", metavar=VERBS, required=True)
    setup = verbs.add_parser("setup", help=_("make a remote, and prove that it can be used"))
    now = verbs.add_parser("now", help=_("back up a run now, and stay until it is proved"))
    status = verbs.add_parser("status", help=_("what is where, from the files here"))
    verify = verbs.add_parser("verify", help=_("ask the remote whether all of it is there and right"))
    prune = verbs.add_parser("prune", help=_("show what would go from the remote; remove it with --yes"))
    restore = verbs.add_parser("restore", help=_("bring a run back, on this server or another"))
    limit = verbs.add_parser("limit", help=_("limit the bandwidth of all backups, also of running ones"))
    pause = verbs.add_parser("pause", help=_("stop sending; what is on its way starts again later"))
    go = verbs.add_parser("go", help=_("go on after a pause"))
    _configure_setup(setup)
    now.add_argument("run", metavar="RUN")
    now.add_argument("--again", action="store_true", help=_("also what was pruned there"))
    status.add_argument("run", metavar="RUN", nargs="?", help=_("a run; all runs without it"))
    verify.add_argument("run", metavar="RUN")
    verify.add_argument("--full", action="store_true", help=_("read everything back and hash it"))
    prune.add_argument("run", metavar="RUN")
    prune.add_argument("--yes", action="store_true", help=_("remove it"))
    prune.add_argument("--keep-rows", action="store_true", help=_("keep the tokenized rows, too"))
    for verb in (now, status, verify, prune):
        verb.add_argument("--remote", metavar="REMOTE:PATH", help=_("another remote than the recipe's"))
    restore.add_argument("source", metavar="REMOTE:PATH", help=_("the folder of a run, or of one checkpoint"))
    restore.add_argument("dir", metavar="DIR", nargs="?", help=_("where to (default: the workspace's runs)"))
    restore.add_argument("--step", type=int, metavar="N", help=_("the checkpoint of this step only"))
    restore.add_argument("--all", action="store_true", help=_("every checkpoint, not only the best and the newest"))
    limit.add_argument("rate", metavar="RATE", help=_("for example 50M (bytes a second), or off"))
    for verb in (now, prune, restore, setup):
        verb.add_argument("--dry-run", action="store_true", help=_("say what would be done, and do nothing"))
    for verb in (setup, now, status, verify, prune, restore, limit, pause, go):
        verb.add_argument(
            "--json", action="store_true", default=argparse.SUPPRESS, help=_("one JSON document on stdout")
        )


def _configure_setup(setup: argparse.ArgumentParser) -> None:
    setup.add_argument("--name", default=None, help=_("the remote's name (default: s3)"))
    setup.add_argument("--provider", help=_("aws, r2, b2, minio, yandex, vk, selectel, ceph or other"))
    setup.add_argument("--endpoint", metavar="URL")
    setup.add_argument("--region")
    setup.add_argument("--account", help=_("the account id, where the endpoint holds it (r2)"))
    setup.add_argument("--bucket", metavar="BUCKET[/FOLDER]")
    setup.add_argument(
        "--key-file",
        metavar="FILE",
        help=_("a file with the access key and the secret key, one a line; - reads them from stdin"),
    )
    setup.add_argument("--env-auth", action="store_true", help=_("take credentials from the environment or a role"))
    setup.add_argument("--use", metavar="REMOTE:PATH", help=_("check a remote that rclone knows already"))
    setup.add_argument("--default", action="store_true", help=_("use it for every run whose recipe names no remote"))


def run(args: argparse.Namespace, out: Output) -> int:
    """Run one verb."""
    from tui import backup_setup

    verbs: dict[str, Callable[[argparse.Namespace, Output], int]] = {
        "setup": backup_setup.setup,
        "now": _now,
        "status": _status,
        "verify": _verify,
        "prune": _prune,
        "restore": _restore,
        "limit": _limit,
        "pause": _limit,
        "go": _limit,
    }
    return verbs[args.verb](args, out)


def _of(args: argparse.Namespace) -> tuple[Workspace, RunFolder, Policy]:
    """The workspace, the run and where its backup is.

    Raises:
        UsageError: the run has no remote.
    """
    from engine.backup.status import effective, policy_of
    from engine.workspace import locate

    workspace = locate(args.home)
    run = workspace.find(args.run)
    policy = policy_of(run, args.remote) if args.verb == "now" else effective(run, args.remote)
    if policy is None:
        raise UsageError(
            _("{run} has no remote").format(run=run.name),
            fix=_("give --remote NAME:bucket/folder, or set one for all runs: `ftui backup setup --default`"),
            kind="no_remote",
        )
    return workspace, run, policy


@contextlib.contextmanager
def _daemon(remote: str) -> Iterator[Daemon]:
    from engine.backup.rclone import Daemon
    from engine.backup.remote import config_of

    with Daemon(config_of(remote)) as daemon:
        yield daemon


# now


def _now(args: argparse.Namespace, out: Output) -> int:
    from engine.backup import backup, control
    from engine.backup.jobs import Limits
    from engine.backup.status import of
    from tui.backup_text import Bar, show_status

    workspace, run, policy = _of(args)
    if args.dry_run:
        document = of(workspace, run, policy)
        out.json(document) if out.as_json else show_status(document, out)
        return 0
    bar = Bar(out)
    lock = backup.run_lock(run)
    if not lock.acquire() and not _follow(run, bar, lock):
        raise backup.busy(run)
    try:
        with _daemon(policy.remote) as daemon:

            def look() -> tuple[bool, float | None]:
                return False, control.read(workspace).limit  # asked for by hand: a pause does not hold it up

            one = backup.Pass(
                workspace, run, policy, daemon, limits=Limits(look=look), on_progress=bar.show, again=args.again
            )
            outcome = one.go()
    finally:
        bar.end()
        lock.release()
    document = {**of(workspace, run, policy), "sent_bytes": outcome.sent_bytes, "seconds": round(outcome.seconds, 3)}
    document["problems"] = outcome.problems
    if out.as_json:
        out.json(document)
    else:
        show_status(document, out)
    return 0 if outcome.ok else 1


def _follow(run: RunFolder, bar: Any, lock: Any) -> bool:
    """Watch the backup that runs in the background until it lets the run go; False where it does not."""
    from engine.backup import progress

    seen = time.monotonic()
    while not lock.acquire():
        if (document := progress.read(run.path / "backup")) is not None:
            bar.show_document(document)
            seen = time.monotonic()
        elif time.monotonic() - seen > 60:
            return False
        time.sleep(0.2)
    return True


# status


def _status(args: argparse.Namespace, out: Output) -> int:
    from engine.backup import control
    from engine.backup.status import effective, of
    from engine.workspace import locate
    from tui.backup_text import show_runs, show_status

    workspace = locate(args.home)
    if args.run:
        run = workspace.find(args.run)
        document = of(workspace, run, effective(run, args.remote))
        out.json(document) if out.as_json else show_status(document, out)
        return 0
    wish = control.read(workspace)
    rows = []
    for run in workspace.runs():
        try:
            rows.append(of(workspace, run, effective(run, args.remote)))
        except FtuiError as error:
            rows.append({"run": run.name, "remote": None, "checkpoints": [], "error": error.to_json()})
    if out.as_json:
        out.json({"runs": rows, "paused": wish.paused, "limit": wish.limit})
    else:
        show_runs(rows, wish, out)
    return 0


# verify


def _verify(args: argparse.Namespace, out: Output) -> int:
    from engine.backup import backup, check
    from engine.backup.ledger import Ledger
    from engine.backup.remote import Remote
    from engine.backup.status import of
    from tui.backup_text import Bar, show_status

    workspace, run, policy = _of(args)
    lock = backup.run_lock(run)
    if not lock.acquire():
        raise backup.busy(run)
    bar = Bar(out)
    try:
        with _daemon(policy.remote) as daemon:
            remote = Remote(daemon, policy.to(run.name))
            ledger = Ledger(run.path / "backup", policy.remote, write=True)
            try:
                findings, absent = check.check(run, policy, remote, ledger, full=args.full, tick=bar.count)
            finally:
                ledger.close()
                remote.close()
    finally:
        bar.end()
        lock.release()
    document = of(workspace, run, policy)
    for row in (*document["checkpoints"], *document["others"]):
        row["findings"] += findings.get(row["name"], [])
    document["missing"] = absent
    document["full"] = bool(args.full)
    good = not findings and not absent
    if out.as_json:
        out.json(document)
    else:
        show_status(document, out)
        if good:
            out.line(_("everything that is wanted is there and right"), "ok")
    return 0 if good else 4


# prune


def _prune(args: argparse.Namespace, out: Output) -> int:
    from engine.backup import backup, prune
    from engine.backup.ledger import Ledger
    from engine.backup.remote import Remote
    from tui.backup_text import show_prune

    _workspace, run, policy = _of(args)
    lock = backup.run_lock(run)
    if not lock.acquire():
        raise backup.busy(run)
    removed = 0
    try:
        with _daemon(policy.remote) as daemon:
            remote = Remote(daemon, policy.to(run.name))
            ledger = Ledger(run.path / "backup", policy.remote, write=True)
            try:
                plan = prune.plan(run, remote, ledger, keep_rows=args.keep_rows)
                if args.yes and not args.dry_run:
                    removed = prune.remove(plan, remote, ledger)
            finally:
                ledger.close()
                remote.close()
    finally:
        lock.release()
    document = {"run": run.name, "remote": policy.to(run.name), **plan.to_json(), "removed": removed}
    if out.as_json:
        out.json(document)
    else:
        show_prune(document, out)
    return 0


# restore


def _restore(args: argparse.Namespace, out: Output) -> int:
    from engine.backup.policy import check_remote
    from engine.backup.restore import restore
    from engine.files import user_path
    from engine.workspace import locate
    from tui.backup_text import Bar, show_restored, show_restoring

    workspace = locate(args.home)
    source = check_remote(args.source, args.source)
    directory = user_path(args.dir) if args.dir else None
    if directory is None:
        workspace.prepare()
    bar = Bar(out)
    try:
        with _daemon(source) as daemon:
            document = restore(
                workspace,
                daemon,
                source,
                directory,
                step=args.step,
                everything=args.all,
                dry_run=args.dry_run,
                on_plan=lambda plan: show_restoring(plan, out),
                on_progress=bar.show,
            )
    finally:
        bar.end()
    if out.as_json:
        out.json(document)
    elif not args.dry_run:
        show_restored(document, out)
    return 0


# limit, pause, go


def _limit(args: argparse.Namespace, out: Output) -> int:
    from engine.backup import control
    from engine.backup.policy import rate
    from engine.text import gigabytes
    from engine.workspace import locate

    workspace = locate(args.home)
    changes: dict[str, Any] = {"paused": args.verb == "pause"}
    if args.verb == "limit":
        changes = {"limit": rate(args.rate, "RATE")}
    wish = control.change(workspace, **changes)
    if args.verb == "go":
        from engine import keeper

        keeper.ensure(workspace)
    if out.as_json:
        out.json({"paused": wish.paused, "limit": wish.limit})
        return 0
    limit = _("{rate} a second").format(rate=gigabytes(wish.limit)) if wish.limit else _("no limit")
    out.line(_("backups are paused") if wish.paused else _("backups run, {limit}").format(limit=limit))
    return 0


def terminal() -> bool:
    """Whether somebody can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty() and not os.environ.get("CI")


def read_keys(path: str) -> tuple[str, str, str | None]:
    """Access key, secret key and session token from a file or from stdin, one a line.

    Raises:
        UsageError: they are not there.
    """
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(_("the keys cannot be read: {reason}").format(reason=error), where=path) from None
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not 2 <= len(lines) <= 3:
        raise UsageError(
            _("two lines are wanted: the access key and the secret key (and a session token)"),
            where=path,
            kind="bad_keys",
        )
    return lines[0], lines[1], lines[2] if len(lines) == 3 else None
