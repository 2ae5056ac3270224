"""Rows in one tidy shape, as training takes them: no invisible characters, roles by their usual names."""

from __future__ import annotations

import json
from typing import Any

from engine.data import characters
from engine.data.forms import Message, Row

CHAT_FORMS = frozenset(("messages", "sharegpt", "alpaca"))


def cleaned(row: Row, *, chat: bool) -> dict[str, Any]:
    """The columns of a row that can be trained on.

    Args:
        row: a row that `turns.check` did not find broken.
        chat: prompt + completion rows become conversations, too, because the others are.
    """
    if row.text is not None:
        return {"text": _text(row.text)}
    assert row.messages is not None
    result: dict[str, Any]
    if row.chosen is not None and row.rejected is not None:
        prompt, chosen, rejected = (_messages(part) for part in (row.messages, row.chosen, row.rejected))
        if row.plain:
            texts = [part[0]["content"] if part else "" for part in (prompt, chosen, rejected)]
            result = dict(zip(("prompt", "chosen", "rejected"), texts, strict=True))
            if not prompt:
                del result["prompt"]
        else:
            result = {"prompt": prompt, "chosen": chosen, "rejected": rejected}
    elif row.form == "prompt_completion" and not chat:
        prompt, completion = _messages(row.messages[: row.prompt_length]), _messages(row.messages[row.prompt_length :])
        result = {
            "prompt": prompt[0]["content"] if row.plain else prompt,
            "completion": completion[0]["content"] if row.plain else completion,
        }
    else:
        result = {"messages": _messages(row.messages)}
    if row.tools:
        result["tools"] = row.tools
    return result


def _messages(messages: list[Message]) -> list[Message]:
    return [_message(message) for message in messages]


def _message(message: Message) -> Message:
    """A message with its role in lower case, its parts joined, and the arguments of its calls as objects."""
    result: Message = {"role": str(message["role"]).strip().lower()}
    content = message.get("content")
    if isinstance(content, list):
        content = "\n".join(part if isinstance(part, str) else part["text"] for part in content)
    if content is not None:
        result["content"] = _text(content)
    calls = message.get("tool_calls")
    if not isinstance(calls, list) and isinstance(message.get("function_call"), dict):
        calls = [{"type": "function", "function": message["function_call"]}]
    if calls:
        result["tool_calls"] = [_call(call) for call in calls]
    for key in ("tool_call_id", "name", "reasoning_content", "thinking"):
        if isinstance(message.get(key), str):
            result[key] = _text(message[key])
    return result


def _call(call: dict[str, Any]) -> dict[str, Any]:
    function = dict(call.get("function", call))
    if isinstance(function.get("arguments"), str):
        function["arguments"] = json.loads(function["arguments"])
    rest = {key: value for key, value in call.items() if key not in ("function", "name", "arguments")}
    return {**rest, "type": "function", "function": function}


def _text(text: str) -> str:
    return characters.without_odd(text)


def every_text(value: Any, change: Any) -> Any:
    """A value with `change` applied to every text in it that a model would see (not to keys, roles and ids)."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [every_text(item, change) for item in value]
    if isinstance(value, dict):
        kept = ("role", "type", "id", "tool_call_id", "name")
        return {key: item if key in kept else every_text(item, change) for key, item in value.items()}
    return value
