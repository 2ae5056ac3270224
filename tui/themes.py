"""Our themes: calm, one accent, and the same to the eye in truecolor and in 256 colors.

Every color of the dark and the light theme is one of the 256-color palette, so that a terminal (or tmux) that rounds
colors has nothing to round. The third one uses the terminal's own 16 colors.
"""

from __future__ import annotations

import os

from textual.theme import BUILTIN_THEMES, Theme

DARK = "ftui-dark"
LIGHT = "ftui-light"
ANSI = "ftui-ansi"

_PLAIN_CURSOR = {
    "block-cursor-text-style": "none",
    "block-cursor-blurred-text-style": "none",
    "input-cursor-text-style": "reverse",
    "button-focus-text-style": "bold",
}

THEMES = (
    Theme(
        name=DARK,
        primary="#5fafaf",
        secondary="#5f87af",
        accent="#5fafaf",
        warning="#d7af5f",
        error="#d75f5f",
        success="#87af87",
        foreground="#d0d0d0",
        background="#121212",
        surface="#1c1c1c",
        panel="#262626",
        dark=True,
        variables={
            **_PLAIN_CURSOR,
            "muted": "#8a8a8a",
            "row-cursor": "#303030",
            "border": "#444444",
            "border-blurred": "#303030",
            "block-cursor-background": "#303030",
            "block-cursor-foreground": "#eeeeee",
            "block-cursor-blurred-background": "#262626",
            "scrollbar": "#444444",
            "scrollbar-background": "#121212",
            "part-weights": "#5f87af",
            "part-gradients": "#87af87",
            "part-optimizer": "#8787d7",
            "part-activations": "#5fafaf",
            "part-logits": "#d7af5f",
            "part-transients": "#af87af",
            "part-overhead": "#767676",
        },
    ),
    Theme(
        name=LIGHT,
        primary="#005f87",
        secondary="#5f5f87",
        accent="#005f87",
        warning="#875f00",
        error="#af0000",
        success="#005f00",
        foreground="#262626",
        background="#eeeeee",
        surface="#e4e4e4",
        panel="#dadada",
        dark=False,
        variables={
            **_PLAIN_CURSOR,
            "muted": "#626262",
            "row-cursor": "#d0d0d0",
            "border": "#b2b2b2",
            "border-blurred": "#d0d0d0",
            "block-cursor-background": "#d0d0d0",
            "block-cursor-foreground": "#121212",
            "block-cursor-blurred-background": "#dadada",
            "scrollbar": "#b2b2b2",
            "scrollbar-background": "#eeeeee",
            "part-weights": "#005f87",
            "part-gradients": "#005f00",
            "part-optimizer": "#5f5faf",
            "part-activations": "#008787",
            "part-logits": "#875f00",
            "part-transients": "#875f87",
            "part-overhead": "#8a8a8a",
        },
    ),
    Theme(
        name=ANSI,
        ansi=True,
        primary="ansi_cyan",
        secondary="ansi_blue",
        accent="ansi_cyan",
        warning="ansi_yellow",
        error="ansi_red",
        success="ansi_green",
        foreground="ansi_default",
        background="ansi_default",
        surface="ansi_default",
        panel="ansi_default",
        boost="ansi_default",
        dark=True,
        variables={
            **BUILTIN_THEMES["ansi-dark"].variables,
            **_PLAIN_CURSOR,
            "muted": "ansi_default",
            "row-cursor": "ansi_bright_black",
            "border": "ansi_bright_black",
            "border-blurred": "ansi_bright_black",
            "block-cursor-background": "ansi_cyan",
            "block-cursor-foreground": "ansi_black",
            "block-cursor-blurred-background": "ansi_default",
            "block-cursor-blurred-foreground": "ansi_cyan",
            "scrollbar": "ansi_bright_black",
            "scrollbar-background": "ansi_default",
            "part-weights": "ansi_blue",
            "part-gradients": "ansi_green",
            "part-optimizer": "ansi_magenta",
            "part-activations": "ansi_cyan",
            "part-logits": "ansi_yellow",
            "part-transients": "ansi_bright_blue",
            "part-overhead": "ansi_bright_black",
        },
    ),
)

# Variables of our own, for a theme that is not ours.
DEFAULTS = {
    "muted": "#878787",
    "row-cursor": "#585858",
    "part-weights": "#5f87af",
    "part-gradients": "#87af87",
    "part-optimizer": "#8787d7",
    "part-activations": "#5fafaf",
    "part-logits": "#d7af5f",
    "part-transients": "#af87af",
    "part-overhead": "#767676",
}

_SHORT = {"dark": DARK, "light": LIGHT, "ansi": ANSI}


def few_colors() -> bool:
    """Whether the terminal has 16 colors at most, by what the environment says."""
    if os.environ.get("COLORTERM", "").lower() in ("truecolor", "24bit"):
        return False
    term = os.environ.get("TERM", "")
    return term in ("", "dumb", "linux", "vt100", "vt220", "ansi") or term.endswith("16color")


def choose(setting: str | None) -> str:
    """The theme's name for a setting: `dark`, `light`, `ansi`, a theme's own name, or `auto` by the terminal."""
    if not setting or setting == "auto":
        return ANSI if few_colors() else DARK
    return _SHORT.get(setting, setting)
