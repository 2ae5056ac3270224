"""`ftui`: the terminal app and every command of the command line."""

from __future__ import annotations

import sys


def main() -> int:
    """Run `ftui` with the process's arguments and return its exit code."""
    from tui.cli import main as cli_main

    return cli_main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
