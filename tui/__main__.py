"""`ftui`: the terminal app and every command of the command line."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def _only_our_engine() -> None:
    """Leave out PYTHONPATH's entries whose own `engine` would be taken for ours (PYTHONPATH=. is common)."""
    ours = Path(__file__).resolve().parent.parent
    for entry in filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        folder = Path(entry).resolve()
        if folder != ours and (folder / "engine").exists():
            sys.path[:] = [path for path in sys.path if Path(path).resolve() != folder]


def _open_standard_streams() -> None:
    """Without them (`ftui runs >&-`) print fails, and the next file that is opened takes their place."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)  # the lowest free descriptor: this one
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115


def main() -> int:
    """Run `ftui` with the process's arguments and return its exit code."""
    _open_standard_streams()
    if "PYTHONPATH" in os.environ:
        _only_our_engine()
    try:
        from tui.cli import main as cli_main

        return cli_main(sys.argv[1:])
    except KeyboardInterrupt:  # while the command was still loading
        return 130


if __name__ == "__main__":
    sys.exit(main())
