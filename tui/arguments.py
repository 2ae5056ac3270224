"""Types of command-line arguments."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from engine.text import _


def at_least(least: int) -> Callable[[str], int]:
    """A whole number that is not below `least`, for argparse's `type=`."""

    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(
                _("'{text}' is not a whole number from {least} on").format(text=text[:40], least=least)
            )
        return value

    return convert
