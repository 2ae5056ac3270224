"""`ftui logs RUN`: the newest lines of a rank's, the launcher's or the supervisor's log."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from engine.text import _
from tui.arguments import at_least
from tui.output import Output

STREAMS = 'one JSON object a line on stdout: {"line": …}'
CHUNK = 64 * 1024


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--rank", type=at_least(0), default=0, help=_("whose log (default: 0)"))
    parser.add_argument("--launcher", action="store_true", help=_("torchrun's own output"))
    parser.add_argument("--supervisor", action="store_true", help=_("the supervisor's log"))
    parser.add_argument("-n", type=at_least(0), default=200, metavar="N", help=_("how many lines (default: 200)"))
    parser.add_argument("--follow", action="store_true", help=_("go on printing until the run ends"))


def run(args: argparse.Namespace, out: Output) -> int:
    """Print it."""
    from engine.errors import UsageError
    from engine.workspace import locate

    folder = locate(args.home).find(args.run)
    name = "launcher" if args.launcher else "supervisor" if args.supervisor else f"rank-{args.rank}"
    path = folder.logs / f"{name}.log"
    if not path.exists() and not args.follow:
        there = ", ".join(sorted(p.stem for p in folder.logs.glob("*.log"))) or _("none yet")
        raise UsageError(
            _("there is no log of {name}").format(name=name),
            where=str(path),
            fix=_("logs: {there}").format(there=there),
        )
    offset = _print_tail(path, args.n, out, following=args.follow)
    if args.follow:
        from engine.run import status
        from tui.follow import ENDED

        while True:
            ended = status.summary(folder)["state"] in ENDED
            offset = _print_from(path, offset, out, to_end=ended)
            if ended:
                break
            time.sleep(0.3)
    return 0


def _emit(data: bytes, out: Output) -> None:
    if not out.as_json and not sys.stdout.isatty():
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    from tui.sources.log_tail import plain

    for line in data.decode("utf-8", "replace").removesuffix("\n").split("\n") if data else ():
        if out.as_json:
            out.json({"line": line})
        else:
            out.line(plain(line))  # what a program wrote into its log must not act on the terminal


def _print_tail(path: Path, lines: int, out: Output, *, following: bool) -> int:
    """Print the last `lines` lines, reading no more of the file than they need; return the end's offset."""
    try:
        with open(path, "rb") as file:
            end = position = file.seek(0, os.SEEK_END)
            data = b""
            while position > 0 and data.count(b"\n") <= lines:
                start = max(0, position - CHUNK)
                file.seek(start)
                data = file.read(position - start) + data
                position = start
    except FileNotFoundError:
        return 0
    whole = data[: data.rfind(b"\n") + 1] if following else data  # a line that is being written waits for its end
    _emit(b"\n".join(whole.removesuffix(b"\n").split(b"\n")[-lines:]) + b"\n" if lines and whole else b"", out)
    return end - len(data) + len(whole)


def _print_from(path: Path, offset: int, out: Output, *, to_end: bool) -> int:
    """Print the whole lines from `offset` on (`to_end`: a last one without its end, too); the new offset."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            if size < offset:  # rotated: the new file from its start
                offset = 0
            file.seek(offset)
            data = file.read()
    except FileNotFoundError:
        return offset
    if not to_end:
        data = data[: data.rfind(b"\n") + 1]
    _emit(data, out)
    return offset + len(data)
