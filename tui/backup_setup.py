"""`ftui backup setup`: a remote in a rclone.conf that only its owner can read, and the proof that it works.

Keys come from the environment, a file, stdin or a prompt without echo: never from an argument, which everybody on the
machine could read.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from typing import TYPE_CHECKING, Any

from engine.errors import FtuiError, UsageError
from engine.text import _
from tui.output import Output

if TYPE_CHECKING:
    from engine.backup.remotes import Preflight

KEY_VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


def setup(args: argparse.Namespace, out: Output) -> int:
    """Make a remote (or take one that is there), check it, make it the default where asked."""
    from engine.backup import remotes

    if args.use:
        path, made = _check(args.use), None
    else:
        _ask(args)
        path, made = _make(args)
    if args.dry_run:
        document: dict[str, Any] = {
            "remote": path,
            "config": str(remotes.own_config()),
            "preflight": None,
            "default": False,
        }
        if out.as_json:
            out.json(document)
        else:
            out.line(_("would write {path} and check {remote}").format(path=document["config"], remote=path))
        return 0
    if made is not None:
        remotes.write(*made)
    result = _preflight(path)
    default = bool(result.ok and args.default)
    if default:
        from engine import keeper, settings
        from engine.workspace import locate

        settings.save(backup=path)
        keeper.ensure(locate(args.home))
    document = {"remote": path, "config": str(remotes.own_config()) if made else None, "default": default}
    document["preflight"] = result.to_json()
    if out.as_json:
        out.json(document)
    else:
        _show(result, default, out)
    return 0 if result.ok else 1


def _check(path: str) -> str:
    from engine.backup.policy import check_remote

    return check_remote(path, "--use")


def _preflight(path: str) -> Preflight:
    from engine.backup import remotes
    from engine.backup.rclone import Daemon
    from engine.backup.remote import config_of

    with Daemon(config_of(path)) as daemon:
        return remotes.preflight(daemon, path)


def _ask(args: argparse.Namespace) -> None:
    """Ask for what is missing, where somebody is there to answer."""
    from engine.backup.providers import PROVIDERS
    from tui.commands.backup import terminal

    if not terminal():
        return
    args.name = args.name or _answer(_("name of the remote"), "s3")
    args.provider = args.provider or _answer(_("provider ({names})").format(names=", ".join(PROVIDERS)), "aws")
    known = PROVIDERS.get(args.provider)
    if known is not None:
        if known.note:
            out_note(known.note)
        if known.endpoint and "{account}" in known.endpoint and not (args.account or args.endpoint):
            args.account = _answer(_("account id"), None)
        if known.endpoint is None and known.name != "aws" and not args.endpoint:
            args.endpoint = _answer(_("endpoint (https://…)"), None)
        if known.region and not args.region:
            args.region = _answer(_("region"), known.region)
    args.bucket = args.bucket or _answer(_("bucket, and a folder in it"), None)


def out_note(text: str) -> None:
    """A remark beside the prompts."""
    sys.stderr.write(f"  {text}\n")


def _answer(question: str, default: str | None) -> str:
    sys.stderr.write(f"{question}{f' [{default}]' if default else ''}: ")
    sys.stderr.flush()
    value = sys.stdin.readline()
    if not value:
        raise KeyboardInterrupt
    return value.strip() or default or ""


def _make(args: argparse.Namespace) -> tuple[str, tuple[str, dict[str, str]]]:
    from engine.backup import remotes

    if not args.provider or not args.bucket:
        raise UsageError(
            _("it is not said which provider and bucket"),
            fix=_("give --provider and --bucket, or --use REMOTE:PATH; rclone knows: {remotes}").format(
                remotes=", ".join(_known()) or _("none")
            ),
            kind="setup_incomplete",
        )
    name = args.name or "s3"
    key, secret, token = _keys(args)
    values = remotes.s3_values(
        args.provider,
        access_key=key,
        secret_key=secret,
        session_token=token,
        endpoint=args.endpoint,
        region=args.region,
        account=args.account,
    )
    if name in remotes.names_in(remotes.own_config()):
        out_note(_("{name} is replaced").format(name=name))
    return _check(f"{name}:{args.bucket.strip('/')}"), (name, values)


def _known() -> list[str]:
    """The remotes in rclone's own configuration; [] where it cannot tell."""
    from rclone_python import rclone

    from engine.backup.rclone import binary

    try:
        rclone.set_executable_file(shlex.quote(binary()), validate=False)  # it goes through a shell
        return [str(name) for name in rclone.get_remotes()]
    except Exception:  # noqa: BLE001 - it raises bare exceptions, and this is a hint in an error
        return []


def _keys(args: argparse.Namespace) -> tuple[str | None, str | None, str | None]:
    """The keys: from --key-file, the environment (kept in the file, so that the keeper has them too), or a prompt."""
    from tui.commands.backup import read_keys, terminal

    if args.env_auth:
        return None, None, None
    if args.key_file:
        return read_keys(args.key_file)
    if os.environ.get(KEY_VARIABLES[0]) and os.environ.get(KEY_VARIABLES[1]):
        key, secret, token = (os.environ.get(name) for name in KEY_VARIABLES)
        return key, secret, token
    if terminal():
        import getpass

        key = _answer(_("access key"), None)
        secret = getpass.getpass(_("secret key (not shown): "), stream=sys.stderr)
        return key or None, secret or None, None
    raise UsageError(
        _("there are no keys"),
        fix=_("give --key-file FILE (- for stdin), set {names}, or --env-auth").format(
            names=", ".join(KEY_VARIABLES[:2])
        ),
        kind="no_keys",
    )


def _show(result: Preflight, default: bool, out: Output) -> None:
    names = {"list": _("list"), "write": _("write"), "read": _("read back"), "delete": _("delete")}
    for step in result.steps:
        out.field(names[step.name], step.detail or _("ok"), "ok" if step.ok else "error")
    if not result.ok:
        out.error(FtuiError(_("{remote} cannot be used").format(remote=result.remote), fix=result.fix))
        return
    worth = {
        "parts": _("a cheap check proves every object"),
        "plain": _("a cheap check proves every object"),
        "sha256": _("a cheap check proves every object"),
        "opaque": _("its ETags say nothing (encryption): every object is read back to be proved"),
        "none": _("it tells no hash: every object is read back to be proved"),
    }
    out.field(_("proof"), worth.get(result.etag or "none", ""))
    out.line(_("{remote} is ready").format(remote=result.remote), "ok")
    if default:
        out.line(_("runs whose recipe names no remote are backed up there"))
    else:
        out.line(_("in a recipe: backup: {remote}").format(remote=result.remote))
