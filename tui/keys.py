"""The one table of keys: bindings, footers and the help are all made from it.

Keys that tmux and terminals eat are not used: ctrl-a, ctrl-b, ctrl-s, ctrl-j, ctrl-o, shift+enter, alt.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.text import _


@dataclass(frozen=True)
class Key:
    """One key of one screen. `label` is the untranslated short text; `show` puts it into the footer."""

    id: str
    keys: str
    action: str
    label: str
    show: bool = True

    @property
    def text(self) -> str:
        """The label in the user's language."""
        return _(self.label)


TABLES: dict[str, tuple[Key, ...]] = {
    "app": (
        Key("help", "question_mark,f1", "help", "help"),
        Key("palette", "ctrl+p,colon", "command_palette", "commands", show=False),
        Key("quit", "q,ctrl+q", "quit_app", "quit (runs go on)"),
    ),
    "home": (
        Key("open", "enter", "open_run", "open"),
        Key("new", "n", "new_run", "new run"),
        Key("resume", "r", "resume_run", "resume"),
        Key("stop", "x", "stop_run", "stop with save", show=False),
    ),
    "run": (
        Key("back", "escape,h", "back", "runs"),
        Key("save", "s", "save_now", "save"),
        Key("stop", "x", "stop_run", "stop with save"),
        Key("evaluate", "e", "evaluate_now", "evaluate"),
        Key("resume", "r", "resume_run", "resume", show=False),
        Key("log_y", "l", "toggle_log_y", "log-y"),
        Key("zoom_in", "plus,equals_sign", "zoom(1)", "zoom in", show=False),
        Key("zoom_out", "minus", "zoom(-1)", "zoom out", show=False),
        Key("fit", "0", "fit", "whole run", show=False),
        Key("cursor_left", "left", "cursor(-1)", "inspect left", show=False),
        Key("cursor_right", "right", "cursor(1)", "inspect right", show=False),
        Key("page_left", "shift+left", "cursor(-10)", "inspect far left", show=False),
        Key("page_right", "shift+right", "cursor(10)", "inspect far right", show=False),
        Key("log_pane", "o", "toggle_log", "log", show=False),
        Key("copy", "y,c", "copy", "copy", show=False),
    ),
}
