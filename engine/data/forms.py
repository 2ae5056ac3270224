"""The forms that training rows come in, and each row as one shape that all checks share.

A conversation is a list of chat messages whatever the file calls it (messages, ShareGPT, Alpaca, prompt/completion);
a preference is a prompt with two answers; a text is a text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.data.characters import Say, is_blank
from engine.errors import UsageError
from engine.recipe.columns import NAMES
from engine.text import _

Message = dict[str, Any]

TURN_LISTS = ("messages", "conversations", "conversation")
SHAREGPT_ROLES = {
    "human": "user", "user": "user", "prompter": "user", "gpt": "assistant", "assistant": "assistant",
    "chatgpt": "assistant", "bot": "assistant", "bard": "assistant", "model": "assistant", "system": "system",
    "tool": "tool", "observation": "tool", "function_response": "tool", "function_call": "function_call",
    "tool_call": "function_call",
}  # fmt: skip
TRANSCRIPT = "\n\nAssistant:"  # of conversations that were written out as one text
LIKELY = {
    **dict.fromkeys(("question", "query", "input", "human", "user", "request", "source", "q"), "prompt"),
    **dict.fromkeys(("answer", "response", "output", "assistant", "reply", "target", "a", "gpt"), "completion"),
    **dict.fromkeys(("message", "dialogue", "dialog", "turns", "chat", "items"), "messages"),
    **dict.fromkeys(("content", "body", "document", "article"), "text"),
    **dict.fromkeys(("better", "preferred"), "chosen"),
    **dict.fromkeys(("worse", "dispreferred"), "rejected"),
}
ALWAYS_USED = ("tools", "chat_template_kwargs")


@dataclass(slots=True)
class Row:
    """One row in the shape that the checks share."""

    form: str
    messages: list[Message] | None = None  # the conversation; of a preference: its prompt
    chosen: list[Message] | None = None
    rejected: list[Message] | None = None
    text: str | None = None
    tools: list[Any] | None = None
    label: bool | None = None  # of prompt + completion rows: whether the answer is a good one
    prompt_length: int | None = None  # of prompt + completion rows: messages that belong to the prompt
    plain: bool = False  # prompt + completion as texts: trained without the chat template
    broken: bool = False  # an error was found: the row cannot be trained on
    texts: list[tuple[str, str]] = field(default_factory=list)  # (side, text): what a model would see


def check_columns(columns: Mapping[str, str]) -> dict[str, str]:
    """The mapping from our names of columns to the file's.

    Raises:
        UsageError: a name that is not ours.
    """
    for name in columns:
        if name not in NAMES:
            raise UsageError(
                _("'{name}' is not a column that can be mapped").format(name=name),
                fix=_("use: {names}").format(names=", ".join(NAMES)),
                kind="unknown_column",
            )
    return dict(columns)


def rename(value: dict[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    """A row with the file's column names replaced by ours."""
    back = {theirs: ours for ours, theirs in columns.items() if theirs in value}
    ours = set(back.values())
    return {back.get(key, key): item for key, item in value.items() if key in back or key not in ours}


def recognize(keys: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """The form that a row's columns make, with the columns it uses; ("", ()) for none."""
    if "chosen" in keys or "rejected" in keys:
        return "preference", ("prompt", "chosen", "rejected", "system")
    for name in TURN_LISTS:
        if name in keys:
            turns = keys[name]
            first = turns[0] if isinstance(turns, list) and turns else None
            is_sharegpt = isinstance(first, dict) and "role" not in first and ("from" in first or "value" in first)
            return "sharegpt" if is_sharegpt else "messages", (name, "system") if is_sharegpt else (name,)
    if "instruction" in keys:
        return "alpaca", ("instruction", "input", "output", "response", "system", "history")
    if "prompt" in keys or "completion" in keys:
        return "prompt_completion", ("prompt", "completion", "system", "label")
    if "text" in keys:
        return "text", ("text",)
    return "", ()


def mapping(keys: Mapping[str, Any]) -> dict[str, str]:
    """Our names of columns for those of a row that has no known form, where they can be guessed; else nothing."""
    found: dict[str, str] = {}
    for key in keys:
        lower = str(key).strip().lower()
        ours = lower if lower in NAMES and key not in NAMES else LIKELY.get(lower)
        if ours is not None:
            found.setdefault(ours, str(key))
    if found.keys() == {"prompt"} or found.keys() == {"completion"}:
        return {}
    if "messages" in found:
        return {"messages": found["messages"]}
    return found if recognize(found)[0] else {}


def make_row(value: dict[str, Any], form: str, say: Say) -> Row:
    """The row of a recognized form. What is wrong with its frame is said; the turns are left to `turns.check`."""
    row = Row(form)
    if form == "text":
        row.text = _text(value["text"], "text", say)
        row.broken = row.text is None
    elif form == "preference":
        _preference(value, row, say)
    elif form == "prompt_completion":
        _prompt_completion(value, row, say)
    elif form == "alpaca":
        _alpaca(value, row, say)
    else:
        name = next(name for name in TURN_LISTS if name in value)
        turns = value[name]
        row.messages = _turn_list(turns, say) if form == "messages" else _sharegpt(turns, value, say)
        row.broken = row.messages is None
    if "tools" in value and value["tools"] is not None:
        row.tools = _tools(value["tools"], row, say)
    return row


def type_name(value: Any) -> str:
    """A JSON type in words, for messages."""
    names = {str: "a text", bool: "true/false", type(None): "null", list: "a list", dict: "an object"}
    return names.get(type(value), "a number")


def _text(value: Any, name: str, say: Say) -> str | None:
    """A text that must not be missing, null, empty or something else."""
    if isinstance(value, str):
        if is_blank(value):
            say("empty_content", name)
            return None
        return value
    if value is None:
        say("null_content", name)
    else:
        say("non_string_content", type_name(value))
    return None


def _turn_list(turns: Any, say: Say) -> list[Message] | None:
    if turns is None or not isinstance(turns, list):
        say("messages_not_list", type_name(turns))
        return None
    if not turns:
        say("empty_messages")
        return None
    if not all(isinstance(turn, dict) for turn in turns):
        say("messages_not_list", _("a list with something that is not an object in it"))
        return None
    return turns


def _sharegpt(turns: Any, value: dict[str, Any], say: Say) -> list[Message] | None:
    listed = _turn_list(turns, say)
    if listed is None:
        return None
    messages: list[Message] = []
    system = value.get("system")
    if isinstance(system, str) and system.strip():
        messages.append({"role": "system", "content": system})
    for turn in listed:
        message = {key: item for key, item in turn.items() if key not in ("from", "value")}
        if "value" in turn:
            message["content"] = turn["value"]
        speaker = turn.get("from")
        if speaker is None:
            messages.append(message)
            continue
        role = SHAREGPT_ROLES.get(speaker, speaker) if isinstance(speaker, str) else speaker
        if isinstance(role, str) and role not in SHAREGPT_ROLES and (known := SHAREGPT_ROLES.get(role.strip().lower())):
            say("role_case", role)
            role = known
        if role == "function_call":
            call = _parsed_object(turn.get("value"))
            if call is None or not isinstance(call.get("name"), str):
                say("tool_arguments_bad_json")
                return None
            message = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]}
        else:
            message["role"] = role
        messages.append(message)
    return messages


def _parsed_object(value: Any) -> dict[str, Any] | None:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    return value if isinstance(value, dict) else None


def _alpaca(value: dict[str, Any], row: Row, say: Say) -> None:
    instruction = _text(value["instruction"], "instruction", say)
    name = "response" if "response" in value and "output" not in value else "output"
    if name not in value:
        say("missing_content", "output")
        answer = None
    else:
        answer = _text(value[name], name, say)
    extra = value.get("input")
    if extra is not None and not isinstance(extra, str):
        say("non_string_content", type_name(extra))
        row.broken = True
        return
    if instruction is None or answer is None:
        row.broken = True
        return
    messages = [{"role": "system", "content": value["system"]}] if _is_text(value.get("system")) else []
    for pair in value.get("history") or []:
        if isinstance(pair, list) and len(pair) == 2 and all(isinstance(part, str) for part in pair):
            messages += [{"role": "user", "content": pair[0]}, {"role": "assistant", "content": pair[1]}]
    prompt = f"{instruction}\n{extra}" if _is_text(extra) else instruction
    row.messages = [*messages, {"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _side(value: dict[str, Any], name: str, role: str, say: Say) -> list[Message] | None:
    """One side of a row that may be a text or a list of messages."""
    item = value[name]
    if isinstance(item, list):
        return _turn_list(item, say)
    text = _text(item, name, say)
    return None if text is None else [{"role": role, "content": text}]


def _prompt_completion(value: dict[str, Any], row: Row, say: Say) -> None:
    for name in ("prompt", "completion"):
        if name not in value:
            say("missing_content", name)
            row.broken = True
            return
    prompt = _side(value, "prompt", "user", say)
    completion = _side(value, "completion", "assistant", say)
    if prompt is None or completion is None:
        row.broken = True
        return
    row.plain = isinstance(value["prompt"], str) and isinstance(value["completion"], str)
    row.label = value["label"] if isinstance(value.get("label"), bool) else None
    if _is_text(value.get("system")) and not row.plain:
        prompt = [{"role": "system", "content": value["system"]}, *prompt]
    row.messages, row.prompt_length = prompt + completion, len(prompt)


def _preference(value: dict[str, Any], row: Row, say: Say) -> None:
    missing = [name for name in ("chosen", "rejected") if name not in value]
    for name in missing:
        say(f"missing_{name}")
    prompt = _side(value, "prompt", "user", say) if "prompt" in value else []
    sides = [_side(value, name, "assistant", say) for name in ("chosen", "rejected") if name in value]
    if missing or prompt is None or any(side is None for side in sides):
        row.broken = True
        return
    chosen, rejected = (side for side in sides if side is not None)
    row.plain = isinstance(value["chosen"], str) and isinstance(value.get("prompt", ""), str)
    if isinstance(value["chosen"], str) != isinstance(value["rejected"], str):
        say("non_string_content", _("a text on one side and messages on the other"))
        row.broken = True
        return
    if prompt:  # whole conversations beside an explicit prompt: what they repeat of it is not the answer
        chosen, rejected = (
            side[len(prompt) :] if side[: len(prompt)] == prompt else side for side in (chosen, rejected)
        )
        if any(len(side) > 1 and side[0].get("role") in ("user", "system") for side in (chosen, rejected)):
            say("prompt_differs")
    elif row.plain:
        heads = [str(value[name]).rpartition(TRANSCRIPT)[0] for name in ("chosen", "rejected")]
        if all(heads) and heads[0].strip() != heads[1].strip():
            say("prompt_differs")
    else:
        shared = _shared(chosen, rejected)
        prompt, chosen, rejected = chosen[:shared], chosen[shared:], rejected[shared:]
        if any(message.get("role") == "user" for message in chosen[:1] + rejected[:1]):
            say("prompt_differs")
    row.messages, row.chosen, row.rejected = prompt, chosen, rejected


def _shared(chosen: list[Message], rejected: list[Message]) -> int:
    """How many leading messages are the same on both sides; the last of each is always an answer."""
    count = 0
    most = min(len(chosen), len(rejected)) - 1
    while count < most and chosen[count] == rejected[count]:
        count += 1
    return count


def _tools(value: Any, row: Row, say: Say) -> list[Any] | None:
    """The declared tools; a JSON text of them is as good, an empty one is none."""
    if isinstance(value, str):
        if not value.strip():
            return None
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            say("tool_schema", _("it is not JSON"))
            row.broken = True
            return None
    if not isinstance(value, list):
        say("tool_schema", type_name(value))
        row.broken = True
        return None
    return value
