"""`ftui recipe import` and `ftui recipe export`: recipes of other tools."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from engine.errors import UsageError
from engine.findings import Finding, has_errors
from engine.text import _
from tui.output import Output

TOOLS = ("axolotl", "llamafactory", "trl", "torchtune")
TARGETS = ("trl", "axolotl", "llamafactory")
VALIDATED = ("axolotl", "llamafactory")
VALIDATION_S = 180


def configure(verbs: Any) -> tuple[argparse.ArgumentParser, ...]:
    """Add the two verbs."""
    imported = verbs.add_parser("import", help=_("make a recipe of another tool's YAML"))
    imported.add_argument("file", metavar="FILE", help=_("the other tool's configuration"))
    imported.add_argument("--from", dest="tool", choices=TOOLS, help=_("whose it is (default: recognized by its keys)"))
    imported.add_argument("--out", metavar="FILE", help=_("where to write the recipe (default: NAME-ftui.yaml here)"))
    imported.add_argument("--dry-run", action="store_true", help=_("print it instead of writing it"))
    exported = verbs.add_parser("export", help=_("write a recipe for another tool"))
    exported.add_argument("file", metavar="RECIPE", help=_("a recipe file, or the name of a built-in one"))
    exported.add_argument(
        "overrides", nargs="*", default=[], metavar="key=value", help=_("values that replace the recipe's")
    )
    exported.add_argument("--to", choices=TARGETS, required=True, help=_("the other tool"))
    exported.add_argument("--out", metavar="DIR", help=_("the folder to write to (default: NAME-TOOL here)"))
    exported.add_argument("--dry-run", action="store_true", help=_("print the files instead of writing them"))
    return imported, exported


def run_import(args: argparse.Namespace, out: Output) -> int:
    """Read another tool's file, write ours, say what is not carried."""
    from engine import recipe
    from engine.files import user_path, write_atomic
    from engine.interop import foreign
    from tui.commands.recipe import show_findings

    source = user_path(args.file)
    imported = foreign.read(source, args.tool)
    text = foreign.recipe_text(imported, source.name)
    path = user_path(args.out or f"{source.stem}-ftui.yaml")
    findings = list(imported.findings)
    if not args.dry_run:
        _absent(path)
        write_atomic(path, text.encode(), durable=False)
        findings += recipe.load(path).findings  # its lines are those of the new file
    document = {
        "from": imported.tool,
        "path": str(path.absolute()),
        "written": not args.dry_run,
        "recipe": imported.values,
        "findings": [finding.to_json() for finding in findings],
    }
    failed = has_errors(findings)
    if out.as_json:
        out.json(document)
        return 2 if failed else 0
    show_findings(imported.findings, out, args.file)
    if args.dry_run:
        out.line(text.rstrip())
        return 2 if failed else 0
    show_findings(findings[len(imported.findings) :], out, path)
    out.line(_("{path} written ({tool})").format(path=path, tool=imported.tool), "warning" if failed else "ok")
    out.note(_("  look at it, then: ftui recipe check {path}").format(path=path))
    return 2 if failed else 0


def run_export(args: argparse.Namespace, out: Output) -> int:
    """Write a recipe for another tool, and ask that tool where it is installed."""
    from engine import recipe
    from engine.files import user_path, write_atomic
    from engine.interop import exported
    from tui.commands.recipe import show_findings

    loaded = recipe.load(recipe.find(args.file), args.overrides)
    findings = list(loaded.findings)
    values: dict[str, Any] = {}
    if not has_errors(findings):  # for the GPUs that the recipe names, not for those of this machine
        values = recipe.resolve(loaded, num_gpus=loaded.recipe.given.get("num_gpus"))
    if has_errors(findings):
        if out.as_json:
            out.json({"findings": [finding.to_json() for finding in findings]})
        else:
            show_findings(findings, out, loaded.path)
        return 2
    written = exported.export(loaded, values, args.to)
    folder = user_path(args.out or f"{loaded.path.stem}-{args.to}")
    findings = list(written.findings)
    if not args.dry_run:
        _absent(folder)
        folder.mkdir(parents=True)
        for name, text in written.files.items():
            write_atomic(folder / name, text.encode(), durable=False)
        findings += _validated(args.to, folder)
    if out.as_json:
        out.json(
            {
                "to": args.to,
                "path": str(folder.absolute()),
                "written": not args.dry_run,
                "files": written.files,
                "findings": [finding.to_json() for finding in findings],
            }
        )
        return 1 if has_errors(findings) else 0
    show_findings(findings, out, loaded.path)
    if args.dry_run:
        for name, text in written.files.items():
            out.line(f"# {name}", "dim")
            out.line(text.rstrip())
        return 0
    out.line(_("{path} written: {names}").format(path=folder, names=", ".join(written.files)), "ok")
    return 1 if has_errors(findings) else 0


def _absent(path: Path) -> None:
    if os.path.lexists(path):
        raise UsageError(
            _("{path} is there already, and nothing is overwritten").format(path=path),
            where=str(path),
            fix=_("give another place with --out"),
            kind="exists",
        )


def _validated(target: str, folder: Path) -> list[Finding]:
    """What the other tool's own schema says, where it is installed beside the training libraries."""
    import json
    import subprocess

    from engine.settings import training_python

    if target not in VALIDATED:
        return []
    name = f"{target}.yaml"
    command = [training_python(), "-m", "engine.interop.validate", target, name]
    env = {**os.environ, "DISABLE_VERSION_CHECK": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    try:
        done = subprocess.run(
            command, cwd=folder, env=env, capture_output=True, text=True, timeout=VALIDATION_S, check=False
        )
        answer = json.loads(done.stdout.strip().splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        answer = {"installed": False}
    if not answer["installed"]:
        detail = _("{tool} is not installed here: its own schema was not asked").format(tool=target)
        return [Finding("not_validated", "note", detail)]
    if answer["error"]:
        detail = _("{tool} refuses it: {reason}").format(tool=target, reason=answer["error"])
        return [Finding("refused", "error", detail, _("change the file by hand"), extra={"file": str(folder / name)})]
    return [Finding("validated", "note", _("{tool}'s own schema takes it").format(tool=target))]
