"""A question to what is served and to the base beside it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from engine.serve import offer
from engine.serve.check import Client
from engine.serve.launch import Served
from engine.text import printable
from engine.workspace import Workspace
from tui.serve_text import Turn
from tui.state.serve import ServeSnapshot

SHOW_S = 0.1  # how often an answer that is being written is shown
LONGEST = 256  # tokens of an answer


def ask(
    workspace: Workspace,
    name: str,
    server: ServeSnapshot,
    before: Sequence[Turn],
    turn: Turn,
    changed: Callable[[], None],
) -> None:
    """Fill a turn: the tuned model's answer, then the base's where it is asked too.

    Args:
        workspace: where the servers are.
        name: the server.
        server: what is known of it.
        before: the conversation so far.
        turn: the question.
        changed: told when there is more of an answer.

    Raises:
        FtuiError: a server does not answer.
    """
    served = offer.existing(workspace, name)
    base = server.base if server.base is not None else offer.base_name(name)
    beside = served if server.base is not None else offer.existing(workspace, base)
    try:
        if served is not None:
            _one(served, server.tuned, "tuned", before, turn, changed)
        if beside is not None and turn.base is not None:
            _one(beside, base, "base", before, turn, changed)
    finally:
        turn.over = True


def _one(
    served: Served, model: str, side: str, before: Sequence[Turn], turn: Turn, changed: Callable[[], None]
) -> None:
    messages = [message for earlier in before for message in earlier.messages(side)]
    messages.append({"role": "user", "content": turn.question})
    shown = 0.0

    def told(text: str) -> None:
        nonlocal shown
        if time.monotonic() - shown > SHOW_S:
            shown = time.monotonic()
            turn.put(side, printable(text))
            changed()

    with Client(served) as client:
        answer = client.stream(model, messages, max_tokens=LONGEST, told=told)
    turn.put(side, printable(answer.text))
    if side == "tuned":
        turn.rate, turn.first_s = answer.rate, answer.first_s
