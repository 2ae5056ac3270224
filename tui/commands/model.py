"""`ftui model`: fetch a model of the hub with its hashes checked, list the models here, remove one."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

from engine.errors import FtuiError
from engine.text import _, gigabytes, ngettext
from engine.workspace import Workspace, locate
from tui.output import Output


def configure(parser: argparse.ArgumentParser) -> None:
    """The verbs of `ftui model`."""
    verbs = parser.add_subparsers(dest="verb", metavar="get|list|rm", required=True)
    get = verbs.add_parser("get", help=_("fetch a model; what is here already is kept"))
    get.add_argument("model", metavar="OWNER/NAME", help=_("its name on the hub"))
    get.add_argument("--revision", default="main", metavar="R", help=_("branch, tag or commit (default: main)"))
    get.add_argument("--dry-run", action="store_true", help=_("say what would be fetched, and whether it fits"))
    listing = verbs.add_parser("list", help=_("list the models on this machine"))
    remove = verbs.add_parser("rm", help=_("remove a model from this machine"))
    remove.add_argument("model", metavar="OWNER/NAME", help=_("its name on the hub"))
    remove.add_argument("--force", action="store_true", help=_("although runs use it"))
    remove.add_argument("--dry-run", action="store_true", help=_("say what would be freed"))
    for verb in (get, listing, remove):
        verb.add_argument(
            "--json", action="store_true", default=argparse.SUPPRESS, help=_("one JSON document on stdout")
        )


def run(args: argparse.Namespace, out: Output) -> int:
    """Run one verb."""
    verb = {"get": _get, "list": _list, "rm": _remove}[args.verb]
    return verb(args, out, locate(args.home).prepare())


def _get(args: argparse.Namespace, out: Output, workspace: Workspace) -> int:
    return fetch(args.model, args.revision, workspace, out, dry_run=args.dry_run)


def fetch(name: str, revision: str, workspace: Workspace, out: Output, *, dry_run: bool = False) -> int:
    """Fetch a model and say so; also what `ftui run` offers when the base is missing."""
    from engine.hub import download, remote

    model = remote.ask(name, revision)
    todo = download.missing(model)
    need = sum(file.size for file in todo)
    download.check_room(model, todo)
    document = {
        "model": model.name,
        "revision": model.revision,
        "commit": model.commit,
        "license": model.license,
        "gated": model.gated,
        "bytes": model.bytes,
        "to_fetch": need,
        "files": {file.path: file.size for file in model.files},
    }
    if dry_run:
        if out.as_json:
            out.json(document)
        else:
            files = ngettext("{n} file", "{n} files", len(todo)).format(n=len(todo))
            out.line(
                _("{name} at {commit}: {files}, {need} to fetch of {all}").format(
                    name=model.name,
                    commit=model.commit[:12],
                    files=files,
                    need=gigabytes(need),
                    all=gigabytes(model.bytes),
                )
            )
        return 0
    if need:
        out.note(_("fetching {name}: {need}").format(name=model.name, need=gigabytes(need)))
    done = download.fetch(model, workspace, _progress(out))
    if out.as_json:
        out.json({**document, "path": str(done.path), "fetched": done.fetched, "seconds": round(done.seconds, 2)})
        return 0
    out.line(_("{name} is here, every hash checked").format(name=model.name), "ok")
    out.field(_("folder"), str(done.path))
    out.field(_("revision"), model.commit)
    if model.license:
        out.field(_("license"), model.license)
    return 0


def _progress(out: Output) -> Callable[[int, int], None]:
    """A line of progress: bytes, rate since the start, time left."""
    began: list[float | int] = []

    def show(done: int, total: int) -> None:
        if not began:
            began.extend((time.monotonic(), done))
        spent, moved = time.monotonic() - began[0], done - began[1]
        rate = moved / spent if spent > 1 and moved > 0 else 0
        text = _("{done} of {total}").format(done=gigabytes(done), total=gigabytes(total))
        if rate:
            from engine.text import duration

            left = duration((total - done) / rate)
            text += _(" · {rate}/s · {left} left").format(rate=gigabytes(rate, 2), left=left)
        out.progress(text)

    return show


def _list(_args: argparse.Namespace, out: Output, workspace: Workspace) -> int:
    from engine.hub import local
    from engine.recipe import hub

    models = local.listing(workspace)
    if out.as_json:
        out.json([model.to_json() for model in models])
        return 0
    if not models:
        out.line(_("no models in {cache}").format(cache=hub.cache()))
        out.note(_("  ftui model get OWNER/NAME fetches one"))
        return 0
    rows = [
        (
            model.name,
            gigabytes(model.bytes),
            _("verified") if model.verified else _("whole") if model.complete else _("incomplete"),
            ", ".join(commit[:12] for commit in model.revisions) or "-",
            ngettext("{n} run", "{n} runs", len(model.used_by)).format(n=len(model.used_by)) if model.used_by else "-",
        )
        for model in models
    ]
    out.table([_("model"), _("size"), _("state"), _("revisions"), _("used by")], rows)
    return 0


def _remove(args: argparse.Namespace, out: Output, workspace: Workspace) -> int:
    from engine.hub import local

    model = local.find(workspace, args.model)
    if model.used_by and not (args.force or args.dry_run):
        raise FtuiError(
            _("{name} is the base of {runs}").format(name=model.name, runs=", ".join(model.used_by[:5])),
            where=model.name,
            fix=_("--force removes it anyway; a resume then fetches it again"),
            kind="in_use",
        )
    if not args.dry_run and not args.force and sys.stdin.isatty() and not out.as_json:
        question = _("Remove {name} ({bytes})? [y/N] ").format(name=model.name, bytes=gigabytes(model.bytes))
        if input(question).strip().lower() not in ("y", "yes"):
            return 0
    freed = model.bytes if args.dry_run else local.remove(workspace, model)
    if out.as_json:
        out.json({"model": model.name, "bytes": freed, "removed": not args.dry_run, "used_by": list(model.used_by)})
        return 0
    text = _("{name} would free {bytes}") if args.dry_run else _("{name} removed, {bytes} freed")
    out.line(text.format(name=model.name, bytes=gigabytes(freed)), None if args.dry_run else "ok")
    return 0
