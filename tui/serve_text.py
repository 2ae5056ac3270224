"""The serve screen's words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from engine.errors import FtuiError
from engine.text import _, gigabytes, ngettext, number, printable
from tui.paths import short
from tui.state.serve import ServeSnapshot

if TYPE_CHECKING:
    from engine.serve.launch import Served
    from engine.serve.offer import Offer

Color = Callable[[str], str]
LABEL = 10
_COLORS = {"ready": "success", "failed": "error", "lost": "error", "unhealthy": "warning", "restarting": "warning"}


@dataclass
class Turn:
    """A question and its answers; `base` is None where the base was not asked."""

    question: str
    tuned: str = ""
    base: str | None = None
    first_s: float | None = None
    rate: float | None = None
    over: bool = False

    def put(self, side: str, text: str) -> None:
        """Take an answer, or what there is of it."""
        setattr(self, side, text)

    def messages(self, side: str) -> list[dict[str, str]]:
        """The turn as one side's model knows it; none where it was not asked."""
        answer = self.tuned if side == "tuned" else self.base
        if answer is None:
            return []
        return [{"role": "user", "content": self.question}, {"role": "assistant", "content": answer}]


def state_words(state: str) -> str:
    """A server's state for people."""
    return {
        "": _("not served"),
        "starting": _("starting"),
        "ready": _("ready"),
        "unhealthy": _("does not answer"),
        "restarting": _("starts again"),
        "stopping": _("ends"),
        "stopped": _("stopped"),
        "failed": _("failed"),
        "lost": _("its supervisor is gone"),
    }.get(state, state)


def title(name: str, snapshot: ServeSnapshot, color: Color, *, ascii_only: bool) -> Text:
    """What is served, its state and its address."""
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(f" {_('SERVE')}  ", "bold").append(
        printable(short(Path(name)) if "/" in name else name), color("accent")
    )
    ink = color(_COLORS.get(snapshot.state, "muted"))
    text.append(f"  {'*' if ascii_only else '●'} {state_words(snapshot.state)}", ink)
    if snapshot.live:
        text.append(f"  {snapshot.url}").append(f"  {snapshot.engine}", color("muted"))
    return text


def facts(
    offer: Offer | None, snapshot: ServeSnapshot, problem: FtuiError | None, doing: str, color: Color, width: int
) -> Text:
    """The lines between title and chat."""
    text = Text()

    def line(label: str, words: str, ink: str = "", *, lines: int = 1) -> None:
        room = max(10, width - LABEL - 3)
        if text:
            text.append("\n")
        text.append(f"{label:<{LABEL}}", color("muted"))
        words = words if len(words) <= room * lines else words[: room * lines - 1] + "…"
        rows = [words[at : at + room] for at in range(0, len(words), room)] or [""]
        text.append(f"\n{'':<{LABEL}}".join(rows), color(ink) if ink else "")

    if problem is not None and not snapshot.live:
        line(_("cannot"), problem.what, "error", lines=2)
        if problem.fix:
            line(_("fix"), problem.fix, lines=2)
        return text
    if snapshot.live:
        model = short(Path(snapshot.model))
        line(_("what"), _form(", ".join(snapshot.adapters), model, merge_first=False))
        line(_("fits"), _fit(snapshot.fit))
    elif offer is None:
        line("", _("looking"), "muted")
        return text
    else:
        names = ", ".join(adapter.name for adapter in offer.target.adapters)
        line(_("what"), _form(names, short(offer.target.model), merge_first=offer.to_merge is not None))
        line(_("fits"), _fit(offer.fit.to_json()))
        line(_("command"), offer.command.replace(str(Path.home()), "~"), "muted", lines=4)
    if offer is not None and offer.warning:
        line(_("gate"), offer.warning, "warning")
    if snapshot.state == "failed" and snapshot.error:
        line(_("failed"), printable(snapshot.error), "error", lines=2)
    if snapshot.live:
        _running(snapshot, line)
    if doing:
        line(_("now"), doing, "accent")
    return text


def _form(adapters: str, model: str, *, merge_first: bool) -> str:
    if adapters:
        return _("{adapters} on {model}").format(adapters=adapters, model=model)
    if merge_first:
        return _("one whole model; the adapter is merged first, into {model}").format(model=model)
    return _("one whole model: {model}").format(model=model)


def _fit(fit: dict[str, Any]) -> str:
    words = _("weights {weights}, conversations of up to {tokens} tokens").format(
        weights=gigabytes(fit["weights"]), tokens=number(fit["max_length"])
    )
    if fit["tensor_parallel"] > 1:
        words += _(", on {n} GPUs").format(n=number(fit["tensor_parallel"]))
    return words + _("; {room} there").format(room=gigabytes(fit["room"]))


def _running(snapshot: ServeSnapshot, line: Callable[..., None]) -> None:
    checked = snapshot.checked
    if checked:
        words = {True: _("template as in training"), False: _("template NOT as in training")}
        parts = [words[checked["template"]]] if checked.get("template") is not None else []
        if checked.get("adapter") is not None:
            parts.append(_("adapter active") if checked["adapter"] else _("adapter NOT active"))
        if checked.get("first_token_s") is not None:
            parts.append(_("first token after {s} s").format(s=number(checked["first_token_s"], 2)))
        if checked.get("tokens_per_s"):
            parts.append(_("{rate} tokens/s").format(rate=number(checked["tokens_per_s"], 1)))
        line(_("checked"), ", ".join(parts), "success" if checked.get("passed") else "error")
    if snapshot.answered is not None:
        asked = ngettext("{n} request answered", "{n} requests answered", int(snapshot.answered))
        asked = asked.format(n=number(int(snapshot.answered)))
        line(_("requests"), asked + _(", {n} under way").format(n=number(int(snapshot.running or 0))))
    if snapshot.restarts:
        again = ngettext("started again {n} time", "started again {n} times", snapshot.restarts)
        line(_("restarts"), again.format(n=number(snapshot.restarts)), "warning")


def answers(side: str, turns: list[Turn], color: Color, hint: str) -> Text:
    """One side of the chat."""
    text = Text()
    text.append(_("tuned") if side == "tuned" else _("base"), "bold" if side == "tuned" else color("muted"))
    if hint and side == "tuned":
        text = Text(hint, color("muted"))
    for turn in turns:
        answer = turn.tuned if side == "tuned" else turn.base
        text.append("\n" if text else "").append(f"> {printable(turn.question)}\n", color("accent"))
        waiting = _("(no answer)") if turn.over else "…"
        text.append(answer or waiting if answer is not None else _("(not asked)"))
        if side == "tuned" and turn.first_s is not None:
            rate = _(", {rate} tokens/s").format(rate=number(turn.rate, 1)) if turn.rate else ""
            text.append("\n" + _("{s} s").format(s=number(turn.first_s, 2)) + rate, color("muted"))
    return text


def card(served: Served) -> list[tuple[str, str]]:
    """What to copy where: (heading, text)."""
    from engine.serve import handoff

    spec = served.spec
    return [
        (_("on your own machine: the tunnel"), handoff.tunnel(spec)),
        (_("there: the key"), handoff.key(served)),
        (_("a first request on this server"), handoff.curl(served, spec)),
        (_("from Python"), handoff.client(served, spec)),
        (_("where the key is"), str(served.key_file)),
    ]
