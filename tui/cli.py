"""The command line: finds the command, loads only its module, and turns errors into one clear message.

A command is a module of `tui.commands` with `configure(parser)` and `run(args, out) -> exit code`. The table here
holds what `ftui --help` shows, so that the help imports none of them.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from engine.errors import FtuiError, UsageError
from engine.text import _
from tui.output import Output

VERSION = "0.1.0"

COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("tui.commands.demo", "fine-tune the built-in model on the built-in data, through every stage"),
    "plan": ("tui.commands.plan", "will it fit, how long, how much, and what to change"),
    "doctor": ("tui.commands.doctor", "check this machine and say how to fix what is wrong"),
    "smoke": ("tui.commands.smoke", "rehearse a recipe on a small model: same data, template, method"),
    "run": ("tui.commands.run", "start a run from a recipe; it goes on without this terminal"),
    "runs": ("tui.commands.runs", "list the runs"),
    "status": ("tui.commands.status", "show one run: step, loss, GPUs, what is at risk"),
    "explain": ("tui.commands.explain", "why a run ended, and what to do about it"),
    "watch": ("tui.commands.watch", "watch a run live"),
    "logs": ("tui.commands.logs", "print a run's logs"),
    "save": ("tui.commands.save", "save a checkpoint now"),
    "stop": ("tui.commands.stop", "stop a run with everything saved"),
    "resume": ("tui.commands.resume", "go on from the newest good checkpoint"),
    "ckpt": ("tui.commands.ckpt", "list, verify, pin, prune and copy checkpoints"),
    "eval": ("tui.commands.eval", "is the tuned model better than its base? loss, answers, gates"),
    "compare": ("tui.commands.compare", "runs beside each other: settings, results, loss curves"),
    "merge": ("tui.commands.merge", "merge an adapter into its base model, verified"),
    "serve": ("tui.commands.serve", "serve a result with an OpenAI-compatible API, and check it"),
    "model": ("tui.commands.model", "fetch a model of the hub, list the models here, remove one"),
    "backup": ("tui.commands.backup", "copies of a run elsewhere, proved; and back from there"),
    "lease": ("tui.commands.lease", "when this server ends, and whether it can be given back"),
    "notices": ("tui.commands.notices", "where notices go: list the channels, send a test"),
    "recipe": ("tui.commands.recipe", "make, check, import or export a recipe"),
    "export": ("tui.commands.export", "write a job for Slurm, SkyPilot or a container"),
    "data": ("tui.commands.data", "check training data, look at its rows"),
    "keeper": ("tui.commands.keeper", "the workspace's background process"),
}


class Parser(argparse.ArgumentParser):
    """An argparse parser whose errors are ours: one message, exit code 2, JSON where it was asked for."""

    def error(self, message: str) -> NoReturn:
        """Raise a UsageError instead of printing and exiting."""
        raise UsageError(
            message, where=self.prog, fix=_("`{command} --help` shows the usage").format(command=self.prog)
        )


def _top_parser() -> Parser:
    lines = "\n".join(f"  {name:<9} {_(text)}" for name, (_module, text) in COMMANDS.items())
    parser = Parser(
        prog="ftui",
        usage="ftui [--home DIR] [--no-tmux] [COMMAND …]",
        description=_("An operator's terminal for fine-tuning. Without a command: the terminal app."),
        epilog=_("commands:") + "\n" + lines + "\n\n" + _("`ftui COMMAND --help` explains one."),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_common(parser)
    parser.add_argument("--no-tmux", action="store_true", help=_("stay in this terminal"))
    parser.add_argument("--version", action="version", version=f"ftui {VERSION}")
    parser.add_argument("command", nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("rest", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _add_common(parser: argparse.ArgumentParser, streams: str | None = None) -> None:
    """The options of every command; `streams` says what --json means where it is not one document."""
    parser.add_argument("--home", metavar="DIR", help=_("the workspace (default: FTUI_HOME, /data/ft or ~/ftui)"))
    parser.add_argument("--json", action="store_true", help=streams or _("one JSON document on stdout"))


def _command_arguments(top: argparse.Namespace) -> tuple[argparse.Namespace, str]:
    if top.command not in COMMANDS:
        near = difflib.get_close_matches(top.command, COMMANDS, n=1)
        fix = _("did you mean `ftui {name}`?").format(name=near[0]) if near else _("`ftui --help` lists the commands")
        raise UsageError(_("there is no command '{name}'").format(name=top.command), fix=fix)
    module, text = COMMANDS[top.command]
    parser = Parser(prog=f"ftui {top.command}", description=_(text))
    loaded = importlib.import_module(module)
    _add_common(parser, _(streams) if (streams := getattr(loaded, "STREAMS", None)) else None)
    loaded.configure(parser)
    # Options may stand before, between and after the words (`ftui run demo --name x max_steps=5`);
    # argparse can do that only where there are no sub-commands.
    parse = parser.parse_intermixed_args if parser._subparsers is None else parser.parse_args
    args = parse(top.rest)
    args.home = args.home or top.home
    args.json = args.json or top.json
    args.no_tmux = getattr(args, "no_tmux", False) or top.no_tmux
    return args, module


def main(argv: Sequence[str]) -> int:
    """Run one command line.

    Args:
        argv: the arguments without the program's name.

    Returns:
        The exit code (docs/exit-codes.md).
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # an ASCII locale must not turn a "✓" into a crash
    # From the words alone: an error in the others must be told in JSON, too.
    out = Output(as_json="--json" in list(argv)[: list(argv).index("--") if "--" in argv else None])
    args = None
    try:
        _speak_the_users_language()
        _refuse_other_encodings(argv)
        top = _top_parser().parse_args(list(argv))
        if top.command is None:
            args = top
            return _open_app(top)
        args, module = _command_arguments(top)
        out.as_json = args.json
        code: int = importlib.import_module(module).run(args, out)
        sys.stdout.flush()
        return code
    except FtuiError as error:
        out.error(error)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader (head, less) has gone: say nothing, and keep Python's exit from saying it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # noqa: BLE001 - the last net: no traceback reaches a user
        from tui.crashlog import record

        out.error(record(error, getattr(args, "home", None)))
        return 1


def _refuse_other_encodings(argv: Sequence[str]) -> None:
    """What is not UTF-8 cannot be written into the run's files."""
    for argument in argv:
        try:
            argument.encode()
        except UnicodeEncodeError as error:
            raise UsageError(
                _("{argument} is not UTF-8").format(argument=ascii(argument)),
                fix=_("rename the file, or write the value in UTF-8"),
            ) from error


def _speak_the_users_language() -> None:
    from engine import settings, text

    try:
        if language := settings.load().language:
            text.set_language(language)
    except FtuiError:
        pass  # whoever needs the settings says what is wrong with them; --help and doctor must still work


def _open_app(args: argparse.Namespace) -> int:
    from engine.workspace import locate
    from tui.terminal import open_app

    return open_app(locate(args.home), no_tmux=args.no_tmux)
