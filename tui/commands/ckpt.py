"""`ftui ckpt`: the checkpoints of a run, whether they are whole, and which stay."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import FtuiError, GateError, UsageError
from engine.text import _
from tui.ckpt_text import Progress, show_plan, show_report
from tui.output import Output

if TYPE_CHECKING:
    from engine.checkpoint import ledger
    from engine.workspace import RunFolder


def configure(parser: argparse.ArgumentParser) -> None:
    """The verbs of `ftui ckpt`."""
    verbs = parser.add_subparsers(dest="verb", metavar="list|verify|pin|unpin|prune|export", required=True)
    listing = verbs.add_parser("list", help=_("list a run's checkpoints"))
    verify = verbs.add_parser("verify", help=_("read them and say which are whole"))
    verify.add_argument("run", metavar="RUN_OR_DIR", help=_("a run, a trainer's output folder, or one checkpoint"))
    verify.add_argument("--step", type=int, help=_("the checkpoint of this step only"))
    verify.add_argument(
        "--quick", action="store_true", help=_("names, sizes and headers only; do not read the content")
    )
    pin = verbs.add_parser("pin", help=_("keep a checkpoint whatever retention says"))
    unpin = verbs.add_parser("unpin", help=_("let retention decide again"))
    prune = verbs.add_parser("prune", help=_("show which checkpoints would go and why; remove them with --yes"))
    prune.add_argument("--keep", type=int, metavar="N", help=_("how many of the newest stay (default: the recipe's)"))
    prune.add_argument("--yes", action="store_true", help=_("remove them"))
    export = verbs.add_parser("export", help=_("copy a checkpoint to another folder, hashed while it is copied"))
    for verb in (listing, pin, unpin, prune, export):
        verb.add_argument("run", metavar="RUN")
    for verb in (pin, unpin, export):
        verb.add_argument("step", metavar="STEP", type=int)
    export.add_argument("dir", metavar="DIR", help=_("the copy is DIR/checkpoint-STEP"))
    for verb in (pin, unpin, prune, export):
        verb.add_argument("--dry-run", action="store_true", help=_("say what would be done, and do nothing"))
    for verb in (listing, verify, pin, unpin, prune, export):
        verb.add_argument(
            "--json", action="store_true", default=argparse.SUPPRESS, help=_("one JSON document on stdout")
        )


def run(args: argparse.Namespace, out: Output) -> int:
    """Run one verb."""
    verbs: dict[str, Callable[[argparse.Namespace, Output], int]] = {
        "list": _list,
        "verify": _verify,
        "pin": _pin,
        "unpin": _pin,
        "prune": _prune,
        "export": _export,
    }
    return verbs[args.verb](args, out)


def _run_folder(args: argparse.Namespace) -> RunFolder:
    from engine.workspace import locate

    return locate(args.home).find(args.run)


def _folder(args: argparse.Namespace) -> Path:
    """What RUN_OR_DIR means: a run of that very name, else a folder here, else a run that the name fits."""
    from engine.files import user_path
    from engine.workspace import NAME, locate

    workspace = locate(args.home)
    if NAME.match(args.run) and (workspace.runs_dir / args.run / "resolved.json").is_file():
        return Path(workspace.runs_dir / args.run)
    path = user_path(args.run)
    if path.is_dir():
        return path
    if path.is_symlink() or path.exists():
        raise UsageError(
            _("{path} is not a folder").format(path=path),
            where=str(path),
            fix=_("name a run, or the folder that holds checkpoint-N"),
            kind="not_a_folder",
        )
    if "/" in args.run:
        raise UsageError(
            _("there is no folder {path}").format(path=path),
            fix=_("name a run, or the folder that holds checkpoint-N"),
            kind="no_such_folder",
        )
    return Path(workspace.find(args.run).path)


def _entry(run: RunFolder, step: int) -> ledger.Entry:
    from engine.checkpoint import ledger

    entries = ledger.list(run.checkpoints)
    for entry in reversed(entries):
        if entry.step == step and entry.state != "staging":
            return entry
    steps = ", ".join(str(entry.step) for entry in entries[-8:] if entry.state != "staging")
    raise UsageError(
        _("there is no checkpoint of step {step}").format(step=step),
        where=str(run.checkpoints),
        fix=_("there are those of steps {steps}").format(steps=steps) if steps else _("the run has none yet"),
        kind="no_such_checkpoint",
    )


# list


def _list(args: argparse.Namespace, out: Output) -> int:
    from engine.checkpoint import ledger, pins, pruning

    run = _run_folder(args)
    entries = ledger.list(run.checkpoints)
    pinned = pins.read(run.path) or set()
    best = pruning.best_of(entries)
    newest = next((entry for entry in reversed(entries) if entry.resumable), None)
    rows = [_row(entry, pinned, best, newest) for entry in entries]
    if out.as_json:
        out.json({"run": run.name, "checkpoints": rows, "resume_from": str(newest.path) if newest else None})
        return 0
    if not rows:
        out.line(_("{run} has no checkpoints yet").format(run=run.name))
        return 0
    from engine.text import duration, gigabytes, number

    def value(x: Any) -> str:
        return number(x, 3) if isinstance(x, int | float) else "-"

    now = time.time()
    cells = [
        [
            ">" if row["newest"] else "",
            number(row["step"]),
            _state_word(row),
            value(row["loss"]),
            value(row["eval_loss"]),
            gigabytes(row["bytes"]) if row["bytes"] else "-",
            duration(now - row["time"]) if row["time"] else "-",
            ", ".join(
                text
                for on, text in (
                    (row["pinned"], _("pinned")),
                    (row["best"], _("best")),
                    (row["problem"], row["problem"]),
                )
                if on
            ),
        ]
        for row in rows
    ]
    headers = ["", _("step"), _("state"), _("loss"), _("eval"), _("size"), _("age"), ""]
    out.table(headers, cells, right=frozenset({1, 3, 4, 5, 6}))
    if newest is None:
        out.line(_("none can be resumed from: `ftui ckpt verify {run}` says why").format(run=run.name), "error")
    return 0


def _state_word(row: dict[str, Any]) -> str:
    if row["state"] != "complete" or row["resumable"]:
        return str(row["state"])
    return _("weights") if row["tier"] == "weights" else _("partial")


def _row(entry: ledger.Entry, pinned: set[str], best: str | None, newest: ledger.Entry | None) -> dict[str, Any]:
    try:
        changed: float | None = entry.path.stat().st_mtime
    except OSError:
        changed = None
    return {
        "step": entry.step,
        "path": str(entry.path),
        "state": entry.state,
        "tier": entry.tier,
        "resumable": entry.resumable,
        "problem": entry.problem,
        "bytes": entry.bytes,
        "loss": entry.metrics.get("loss"),
        "eval_loss": entry.metrics.get("eval_loss"),
        "attempt": entry.attempt,
        "time": changed,
        "pinned": entry.path.name in pinned,
        "best": entry.path.name == best,
        "newest": entry is newest,
    }


# verify


def _verify(args: argparse.Namespace, out: Output) -> int:
    from engine.checkpoint import verify

    folder = _folder(args)
    progress = Progress(_("read"))
    try:
        report = verify.verify(folder, step=args.step, quick=args.quick, progress=progress)
    finally:
        progress.end()
    if out.as_json:
        out.json(report.to_json())
    else:
        show_report(report, folder, out)
    return report.exit_code


# pin, unpin


def _pin(args: argparse.Namespace, out: Output) -> int:
    from engine.checkpoint import pins

    run = _run_folder(args)
    name = f"checkpoint-{args.step}"
    add = args.verb == "pin"
    pinned = pins.read(run.path)
    if add:
        name = _entry(run, args.step).path.name
    elif pinned is not None and name not in pinned:
        raise UsageError(
            _("{name} is not pinned").format(name=name),
            where=str(run.path),
            fix=_("`ftui ckpt list {run}` shows the pinned ones").format(run=run.name),
            kind="not_pinned",
        )
    if not args.dry_run:
        pinned = _change_pins(run, name, add)
    if out.as_json:
        out.json({"run": run.name, "pinned": sorted(pinned or ()), "dry_run": args.dry_run})
    elif args.dry_run:
        out.line((_("would pin {name}") if add else _("would unpin {name}")).format(name=name))
    else:
        out.line((_("{name} is pinned") if add else _("{name} is no longer pinned")).format(name=name), "ok")
    return 0


def _change_pins(run: RunFolder, name: str, add: bool) -> set[str]:
    from engine.checkpoint import pins

    try:
        pinned = pins.change(run.path, add=name) if add else pins.change(run.path, remove=name)
    except ValueError as error:
        raise FtuiError(
            _("pins.json cannot be understood, and until then nothing is removed from this run"),
            where=str(run.path / pins.NAME),
            fix=_("move the file away, then pin again"),
            kind="pins_unreadable",
        ) from error
    except OSError as error:
        raise FtuiError(
            _("pins.json cannot be written: {reason}").format(reason=error.strerror or error), where=str(run.path)
        ) from error
    if add and not (run.checkpoints / name).is_dir():  # retired between the look and the pin
        pins.change(run.path, remove=name)
        raise GateError(_("{name} was removed just now").format(name=name), where=str(run.checkpoints), kind="gone")
    return pinned


# prune


def _prune(args: argparse.Namespace, out: Output) -> int:
    from engine.checkpoint import pruning
    from engine.run import status

    if args.keep is not None and args.keep < 1:
        raise UsageError(_("--keep must be at least 1: the newest checkpoint is never removed"), fix=_("--keep 1"))
    run = _run_folder(args)
    state = run.read_state()
    in_use = state.get("resumed_from") if status.state_of(state) in status.LIVE else None
    plan = pruning.plan(run.path, limit=args.keep, in_use=in_use)
    removed: set[Path] = set()
    if args.yes and not args.dry_run:
        try:
            removed = set(pruning.remove(plan))
        except OSError as error:
            raise FtuiError(
                _("not all could be removed: {reason}").format(reason=error.strerror or error),
                where=str(run.checkpoints),
                fix=_("the run may have removed them itself: look with `ftui ckpt list {run}`").format(run=run.name),
                kind="prune",
            ) from error
    if out.as_json:
        rows = [
            {
                "step": verdict.entry.step,
                "path": str(verdict.entry.path),
                "bytes": verdict.entry.bytes,
                "goes": verdict.goes,
                "action": verdict.action,
                "frees": verdict.frees,
                "removed": verdict.entry.path in removed,
                "reason": verdict.reason,
            }
            for verdict in plan.verdicts
        ]
        out.json({"run": run.name, "keep": plan.policy.keep_last, "bytes": plan.bytes, "checkpoints": rows})
        return 0
    show_plan(plan, removed, run.name, out, done=args.yes and not args.dry_run)
    return 0


# export


def _export(args: argparse.Namespace, out: Output) -> int:
    from engine.checkpoint import export, manifest
    from engine.files import user_path

    run = _run_folder(args)
    source = _entry(run, args.step).path
    into = user_path(args.dir).absolute()
    target = into / source.name
    content: manifest.Manifest | None
    if args.dry_run:
        content = export.check(source, into)
    else:
        progress = Progress(_("copied"))
        try:
            export.export(source, into, progress)
        finally:
            progress.end()
        content = manifest.read(target)
    if out.as_json:
        size = content.bytes if content else None
        out.json({"run": run.name, "path": str(target), "bytes": size, "dry_run": args.dry_run})
    elif args.dry_run:
        out.line(_("would copy {source} to {target}").format(source=source, target=target))
    else:
        out.line(_("{name} copied to {target}, every hash right").format(name=source.name, target=target), "ok")
    return 0
