"""`ftui notices`: where notices go, and whether they arrive."""

from __future__ import annotations

import argparse
import time

from engine.errors import FtuiError
from engine.text import _
from tui.output import Output


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("do", choices=("list", "test"), metavar="list|test", nargs="?", default="list")


def run(args: argparse.Namespace, out: Output) -> int:
    """List the channels without what is secret in them, or send each a test; 1 where one does not take it."""
    from engine.notices import channels

    found = channels.read()
    rows = [{"channel": channel.name, "kinds": sorted(channel.kinds) or None} for channel in found]
    failed: list[str] = []
    if args.do == "test":
        if not found:
            raise FtuiError(
                _("there is no channel"),
                where=str(channels.path()),
                fix=_("write one address a line there, as ntfy://topic; then chmod 600"),
                kind="no_channel",
            )
        notice = {"event": "notice", "kind": "test", "time": time.time()}
        for channel in found:
            failed += channels.send([channel], notice)
    if out.as_json:
        out.json({"path": str(channels.path()), "channels": rows, "failed": failed})
    elif not rows:
        out.line(_("no channel: write one address a line, as ntfy://topic, to {path}").format(path=channels.path()))
    else:
        for row in rows:
            out.line("  ".join([str(row["channel"]), ", ".join(row["kinds"] or [_("every notice")])]))
        for name in failed:
            out.line(_("{name} did not take it").format(name=name), "error")
        if args.do == "test" and not failed:
            out.line(_("every channel took the test notice"), "ok")
    return 1 if failed else 0
