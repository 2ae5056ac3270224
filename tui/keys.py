"""The one table of keys: bindings, footers and the help are all made from it.

Keys that tmux and terminals eat are not used: ctrl-a, ctrl-b, ctrl-s, ctrl-j, ctrl-o, shift+enter, alt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.text import _

if TYPE_CHECKING:
    from textual.binding import BindingType


@dataclass(frozen=True)
class Key:
    """One key of one screen, with untranslated texts.

    `label` stands in the footer where `show` says so, `short` there where the terminal is narrow; `more` says in the
    help what the label does not.
    """

    id: str
    keys: str
    action: str
    label: str
    show: bool = True
    range: str = ""  # one sign for many keys, as `1-9`
    short: str = ""
    more: str = ""

    @property
    def text(self) -> str:
        """The label in the user's language."""
        return _(self.label)

    @property
    def short_text(self) -> str:
        """The label for a narrow terminal."""
        return _(self.short or self.label)

    @property
    def help(self) -> str:
        """What the help says."""
        return _(self.more or self.label)

    @property
    def first(self) -> str:
        """The key that footers name."""
        return self.keys.split(",")[0]

    @property
    def face(self) -> str:
        """What a footer shows for it."""
        return self.range or sign(self.first)

    @property
    def signs(self) -> str:
        """All keys as a person reads them."""
        return self.range or " ".join(sign(key) for key in self.keys.split(","))


TABLES: dict[str, tuple[Key, ...]] = {
    "app": (
        Key("help", "question_mark,f1", "help", "help"),
        Key("palette", "ctrl+p,colon", "command_palette", "commands", show=False),
        Key("quit", "q,ctrl+q", "quit_app", "quit (runs go on)", short="quit"),
    ),
    "list": (
        Key("up", "up,k", "move(-1)", "previous", show=False),
        Key("down", "down,j", "move(1)", "next", show=False),
        Key("page_up", "pageup", "page(-1)", "page up", show=False),
        Key("page_down", "pagedown", "page(1)", "page down", show=False),
        Key("first", "home,g", "edge(-1)", "first", show=False),
        Key("last", "end,G", "edge(1)", "last", show=False),
    ),
    "home": (
        Key("open", "enter", "open_run", "open"),
        Key("new", "n", "new_run", "new run"),
        Key("plan", "p", "plan", "plan"),
        Key("resume", "r", "resume_run", "resume"),
        Key("stop", "x", "stop_run", "stop with save", short="stop", more="stop the run, with everything saved"),
        Key("demo", "d", "demo", "demo"),
        Key("data", "i", "data", "data", show=False, more="look at training data: rows, findings, lengths"),
        Key("serve", "m", "serve", "serve", show=False, more="serve the selected run's result, or any model"),
        Key("copy", "y,c", "copy", "copy the run's path or error", show=False),
    ),
    "run": (
        Key("back", "escape,h", "back", "runs", more="take the chart's cursor away, then back to the runs"),
        Key("save", "s", "save_now", "save", more="save a checkpoint at the end of this step"),
        Key("stop", "x", "stop_run", "stop with save", short="stop", more="save at the end of this step, then stop"),
        Key("evaluate", "e", "evaluate_now", "evaluate", more="evaluate at the end of this step"),
        Key("resume", "r", "resume_run", "resume", more="go on from the newest checkpoint"),
        Key("fix", "1,2,3", "fix", "fix", range="1-3", more="apply a fix of the post-mortem: resume, or start anew"),
        Key("checkpoints", "c", "checkpoints", "checkpoints", short="ckpts", more="the run's checkpoints and the disk"),
        Key("data", "i", "data", "data", show=False, more="look at the run's training data"),
        Key("log_y", "l", "toggle_log_y", "log-y", more="loss axis: logarithmic (shows small falls late in a run)"),
        Key("zoom_in", "plus,equals_sign", "zoom(1)", "zoom in", show=False, more="chart: half as many steps"),
        Key("zoom_out", "minus", "zoom(-1)", "zoom out", show=False, more="chart: twice as many steps"),
        Key("fit", "0", "fit", "whole run", show=False, more="chart: the whole run, no cursor"),
        Key(
            "cursor_left",
            "left",
            "cursor(-1)",
            "inspect left",
            show=False,
            more="cursor: the step's values; to the left",
        ),
        Key("cursor_right", "right", "cursor(1)", "inspect right", show=False, more="cursor to the right"),
        Key("page_left", "shift+left", "cursor(-10)", "inspect far left", show=False, more="cursor ten columns left"),
        Key(
            "page_right", "shift+right", "cursor(10)", "inspect far right", show=False, more="cursor ten columns right"
        ),
        Key("log_pane", "o", "toggle_log", "log", show=False, more="log: rank 0, launcher, supervisor, closed"),
        Key("log_up", "pageup,up", "scroll_log(-1)", "log back", show=False, more="log: scroll back"),
        Key("log_down", "pagedown,down", "scroll_log(1)", "log on", show=False, more="log: scroll on"),
        Key("log_left", "less_than_sign", "shift_log(-1)", "log left", show=False, more="log: to the left"),
        Key("log_right", "greater_than_sign", "shift_log(1)", "log right", show=False, more="log: rest of long lines"),
        Key("serve", "m", "serve", "serve", show=False, more="serve its result, try it, and hand it off"),
        Key("samples", "t", "samples", "samples", show=False, more="what it answers to fixed prompts, step by step"),
        Key("answers", "v", "read_answers", "answers", show=False, more="base and tuned answers side by side, blind"),
        Key("copy", "y", "copy", "copy", show=False, more="copy the state, the error and the figures"),
    ),
    "checkpoints": (
        Key("back", "escape,h", "back", "run"),
        Key("resume", "r", "resume_from", "resume from", short="resume", more="go on from the selected checkpoint"),
        Key("drill", "d", "drill", "drill", more="prove that a resume from it works: a few steps beside the run"),
        Key("verify", "v", "verify", "verify", more="read every byte of it and say what is wrong"),
        Key("pin", "p", "pin", "pin", more="keep it whatever retention says; again: no more"),
        Key("prune", "x", "prune", "prune", more="show what the rules would remove, then remove it"),
        Key("export", "e", "export", "export", more="copy it to another folder, hashed on the way"),
        Key("compare", "equals_sign", "compare", "compare", more="beside the marked one, or the one before it"),
        Key("mark", "m", "mark", "mark", show=False, more="mark it to compare others with"),
        Key("backup", "b", "backup_now", "back up", more="send what is missing, and prove that it is there"),
        Key("verify_there", "V", "verify_there", "verify there", show=False, more="ask the remote whether it is right"),
        Key("pause", "u", "pause_backup", "pause uploads", show=False, more="stop sending; again: go on"),
        Key("limit", "w", "limit_backup", "limit uploads", show=False, more="bytes a second, for all uploads"),
        Key("restore", "t", "restore", "restore", show=False, more="bring a run back from REMOTE:PATH"),
        Key("give_back", "l", "give_back", "give back?", show=False, more="what of value is only on this server"),
        Key("copy", "y", "copy", "copy its path", show=False),
    ),
    "report": (
        Key("yes", "y", "yes", "yes"),
        Key("close", "escape,n,enter,q", "close", "close"),
    ),
    "reading": (
        Key("back", "escape,h", "back", "back", more="back; the votes go into the report"),
        Key("vote_a", "a,1", "vote('a')", "A is better", short="A"),
        Key("vote_b", "b,2", "vote('b')", "B is better", short="B"),
        Key("vote_same", "equals_sign,s,0", "vote('same')", "alike"),
        Key("vote_bad", "x,minus", "vote('bad')", "both bad", short="bad"),
        Key("note", "enter,t", "note", "note", more="a note on this row"),
        Key("results", "tab,m", "results", "metrics", more="the metrics and the gate's verdict, and back"),
        Key("previous", "left,p", "move(-1)", "previous", show=False, more="previous row"),
        Key("next", "right,n", "move(1)", "next", show=False, more="next row"),
        Key("marks", "d", "marks", "mark differences", show=False, more="mark the words that differ, or not"),
        Key("names", "w", "names", "show names", show=False, more="whose answers they are; votes are no longer blind"),
        Key("up", "up,k", "scroll(-2)", "up", show=False, more="scroll both answers up"),
        Key("down", "down,j", "scroll(2)", "down", show=False, more="scroll both answers down"),
    ),
    "samples": (
        Key("back", "escape,h", "back", "run"),
        Key("previous", "left,p", "move(-1)", "previous prompt", short="previous"),
        Key("next", "right,n", "move(1)", "next prompt", short="next"),
        Key("up", "up,k", "scroll(-2)", "up", show=False),
        Key("down", "down,j", "scroll(2)", "down", show=False),
    ),
    "serve": (
        Key("back", "escape,h", "back", "back", more="out of the chat's line, then back; the server goes on"),
        Key("start", "s", "start", "start", more="merge where that is needed, start it, and check what it answers"),
        Key("stop", "x", "stop", "stop", more="end the server, and that of the base"),
        Key("chat", "enter,t", "chat", "chat", more="ask it something"),
        Key("base", "b", "base", "base", more="serve the base beside it, to compare"),
        Key("form", "m", "form", "adapter or merged", short="form", more="the adapter on its base, or one whole model"),
        Key("card", "c", "card", "hand-off", more="what to copy where: tunnel, curl, client, key"),
        Key("check", "v", "check", "check", show=False, more="ask again whether it answers as it was trained"),
        Key("log", "o", "log", "log", show=False, more="the end of the server's log"),
        Key("new", "n", "new", "new chat", show=False, more="forget the conversation"),
        Key("up", "up,k,pageup", "scroll(-3)", "up", show=False, more="scroll the chat up"),
        Key("down", "down,j,pagedown", "scroll(3)", "down", show=False, more="scroll the chat down"),
        Key("copy", "y", "copy", "copy", show=False, more="copy the curl line, or the command"),
    ),
    "card": (
        Key("copy", "1,2,3,4", "copy", "copy", range="1-4"),
        Key("close", "escape,enter,q", "close", "close"),
    ),
    "new_run": (
        Key("start", "enter,f5", "start", "start"),
        Key("plan", "f4", "plan", "plan it first"),
        Key("previous", "up", "step(-1)", "previous"),
        Key("next", "down", "step(1)", "next"),
        Key("cancel", "escape", "cancel", "cancel"),
    ),
    "planner": (
        Key("back", "escape", "back", "back"),
        Key("start", "f5", "start", "start"),
        Key("apply", "1,2,3,4,5,6,7,8,9", "apply", "apply", range="1-9"),
        Key("undo", "u,ctrl+z", "undo", "undo"),
        Key("probe", "p", "probe", "probe"),
        Key("save", "w", "save", "save"),
        Key("open", "o", "open", "open"),
        Key("data", "i", "data", "data", show=False, more="look at the recipe's data"),
        Key("copy", "y,c", "copy", "copy the plan", show=False),
        Key("next", "tab,down", "move(1)", "next field", show=False),
        Key("previous", "shift+tab,up", "move(-1)", "previous field", show=False),
    ),
    "plan_choice": (
        Key("next", "right,space,enter", "step(1)", "next value", show=False),
        Key("previous", "left", "step(-1)", "value before", show=False),
    ),
    "plan_number": (
        Key("more", "plus", "step(1)", "double", show=False),
        Key("less", "minus", "step(-1)", "halve", show=False),
    ),
    "data": (
        Key("back", "escape,h", "back", "back"),
        Key("next", "right,n", "step(1)", "next row", short="next"),
        Key("previous", "left,b", "step(-1)", "row before", short="before"),
        Key(
            "filter", "enter", "filter", "filter", more="only the rows of the finding under the cursor; again: all rows"
        ),
        Key("drop", "x", "drop", "drop", more="mark the row as dropped: training leaves it out; again: take it back"),
        Key("plan", "p", "plan", "plan", more="take the suggested max_length, packing and batch into the planner"),
        Key("prepare", "w", "prepare", "prepare", more="write clean data: duplicates out, personal data masked, split"),
        Key("go", "g", "go", "go to", more="go to a row by its number"),
        Key("model", "m", "model", "model", more="the model whose template and tokens are shown"),
        Key("length", "t", "max_length", "length", more="where rows are cut: max_length"),
        Key("up", "up,k", "select(-1)", "finding above", show=False),
        Key("down", "down,j", "select(1)", "finding below", show=False),
        Key("scroll_down", "pagedown,space", "scroll_row(1)", "row: scroll on", show=False),
        Key("scroll_up", "pageup", "scroll_row(-1)", "row: scroll back", show=False),
        Key("marks", "v", "marks", "marks", show=False, more="marks around what is trained and cut, beside the colors"),
        Key("open", "o", "open", "open", show=False, more="open other data"),
        Key("copy", "y,c", "copy", "copy", show=False, more="copy the row as it is shown"),
    ),
    "ask": (
        Key("accept", "enter", "accept", "take it"),
        Key("previous", "up", "step(-1)", "previous"),
        Key("next", "down", "step(1)", "next"),
        Key("cancel", "escape", "cancel", "cancel"),
    ),
    "confirm": (
        Key("yes", "y,enter", "answer(True)", "yes"),
        Key("no", "n,escape", "answer(False)", "no"),
    ),
    "detail": (
        Key("copy", "y,c", "copy", "copy"),
        Key("close", "escape,enter,q", "close", "close"),
    ),
    "help": (Key("close", "escape,f1", "close", "close"),),
    "scroll": (
        Key("up", "up", "scroll(-1)", "up", show=False),
        Key("down", "down", "scroll(1)", "down", show=False),
        Key("page_up", "pageup", "scroll(-10)", "page up", show=False),
        Key("page_down", "pagedown", "scroll(10)", "page down", show=False),
    ),
}

TITLES = {
    "app": "everywhere",
    "list": "in a list",
    "home": "runs",
    "run": "one run",
    "reading": "reading answers",
    "samples": "samples of a run",
    "checkpoints": "checkpoints",
    "serve": "serving",
    "new_run": "new run",
    "planner": "planner",
    "data": "data",
    "plan_choice": "planner: a choice",
    "plan_number": "planner: a number",
}
"""The tables that the help shows, in its order, with their untranslated headings."""

SIGNS = {
    "question_mark": "?",
    "colon": ":",
    "plus": "+",
    "equals_sign": "=",
    "minus": "-",
    "less_than_sign": "<",
    "greater_than_sign": ">",
    "escape": "esc",
    "pageup": "pgup",
    "pagedown": "pgdn",
    "up": "↑",
    "down": "↓",
    "left": "←",
    "right": "→",
}


def sign(key: str) -> str:
    """A key as a person reads it: `?` for `question_mark`, `shift+←` for `shift+left`."""
    return "+".join(SIGNS.get(part, part) for part in key.split("+"))


def bindings(table: str) -> list[BindingType]:
    """Textual's bindings for one table; their ids are `table.id`."""
    from textual.binding import Binding

    return [
        Binding(key.keys, key.action, key.text, show=key.show, id=f"{table}.{key.id}", key_display=key.face)
        for key in TABLES[table]
    ]
