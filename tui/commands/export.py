"""`ftui export RUN --to slurm|skypilot|container`: a job that runs this recipe elsewhere."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
from pathlib import Path
from typing import Any

from engine.errors import FtuiError, UsageError
from engine.text import _
from tui.output import Output

KINDS = ("slurm", "skypilot", "container")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("run", metavar="RUN", help=_("a run, a recipe file, or the name of a built-in recipe"))
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value", help=_("values for a recipe"))
    parser.add_argument("--to", choices=KINDS, required=True, help=_("what runs it there"))
    parser.add_argument("--out", metavar="DIR", help=_("the folder to write to (default: NAME-KIND here)"))
    parser.add_argument(
        "--workspace", metavar="DIR", help=_("the workspace on the machine that runs it (default: this one's path)")
    )
    parser.add_argument("--gpu", metavar="NAME", help=_("the GPU there (default: the plan's)"))
    parser.add_argument("--dry-run", action="store_true", help=_("print the files instead of writing them"))


def run(args: argparse.Namespace, out: Output) -> int:
    """Write the job."""
    from engine.files import user_path, write_atomic
    from engine.interop import jobs
    from engine.workspace import locate

    workspace = locate(args.home)
    known = {run.name: run for run in workspace.runs()}
    facts = _of_run(known[args.run], args) if args.run in known else _of_recipe(args)
    home = str(user_path(args.workspace)) if args.workspace else str(workspace.root.absolute())
    job = jobs.Job(**{**facts, "card": args.gpu or facts["card"]}, home=home)
    files = jobs.write(job, args.to, checkout=Path(jobs.__file__).parents[2])
    folder = user_path(args.out or f"{job.name}-{args.to}")
    if not args.dry_run:
        if os.path.lexists(folder):
            raise UsageError(
                _("{path} is there already, and nothing is overwritten").format(path=folder),
                where=str(folder),
                fix=_("give another place with --out"),
                kind="exists",
            )
        try:
            folder.mkdir(parents=True)
            for name, text in files.items():
                write_atomic(folder / name, text.encode(), durable=False, mode=0o755 if name.endswith(".sh") else 0o644)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)  # ours: it was not there
            raise FtuiError(
                _("the job cannot be written: {reason}").format(reason=error.strerror or error),
                where=str(folder),
                fix=_("give another place with --out"),
                kind="write",
            ) from error
    if out.as_json:
        out.json({"to": args.to, "path": str(folder.absolute()), "written": not args.dry_run, "files": files})
        return 0
    if args.dry_run:
        for name, text in files.items():
            out.line(f"# {name}", "dim")
            out.line(text.rstrip())
        return 0
    out.line(_("{path} written: {names}").format(path=folder, names=", ".join(files)), "ok")
    if job.outside:
        out.note(_("  these must be there too: {paths}").format(paths=", ".join(job.outside)))
    start = {"slurm": "sbatch job.sbatch", "skypilot": "sky jobs launch task.yaml", "container": "docker compose up"}
    out.note(f"  cd {shlex.quote(str(folder))} && {start[args.to]}")
    return 0


def _of_run(run: Any, args: argparse.Namespace) -> dict[str, Any]:
    from engine.run.status import read_plan

    if args.overrides:
        raise UsageError(
            _("{run} is a run: its recipe is what it is").format(run=run.name),
            where=args.overrides[0],
            fix=_("export its recipe with other values: ftui export {path} key=value").format(path=run.recipe),
        )
    resolved = run.read_resolved()
    values, origin = resolved.get("recipe"), resolved.get("origin")
    if not isinstance(values, dict) or not isinstance(origin, dict):
        raise UsageError(
            _("the run's resolved.json is missing or damaged"),
            where=str(run.resolved),
            fix=_("export its recipe instead: ftui export {path}").format(path=run.recipe),
            kind="damaged_run",
        )
    given = {key: value for key, value in values.items() if origin.get(key) in ("recipe", "override")}
    plan = read_plan(run) or {}
    card = plan.get("card")
    return {
        "name": run.name,
        "recipe": given,
        "gpus": 0 if values.get("use_cpu") else int(values.get("num_gpus") or 1),
        "card": card if card != "cpu" else None,
        "hours": plan.get("result", {}).get("time", {}).get("high"),
    }


def _of_recipe(args: argparse.Namespace) -> dict[str, Any]:
    from engine import recipe
    from engine.interop import jobs

    loaded = recipe.load(recipe.find(args.run), args.overrides)
    if errors := [finding for finding in loaded.findings if finding.level == "error"]:
        line = f":{errors[0].lines[0]}" if errors[0].lines else ""
        raise UsageError(
            errors[0].detail,
            where=f"{loaded.path}{line}",
            fix=_("`ftui recipe check {recipe}` shows everything that is wrong").format(recipe=args.run),
            kind="recipe",
        )
    given = loaded.recipe.given
    cpu = given.get("device") == "cpu"
    return {
        "name": jobs.run_name(loaded.path.stem),
        "recipe": dict(given),
        "gpus": 0 if cpu else int(given.get("num_gpus") or 1),
        "card": None,
        "hours": None,
    }
