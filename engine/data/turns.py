"""What a conversation must be like: roles and their order, content, tool calls."""

from __future__ import annotations

import json
from typing import Any

from engine.data.characters import Say, is_blank
from engine.data.forms import Message, Row, type_name
from engine.text import _

ROLES = frozenset(("system", "developer", "user", "assistant", "tool", "function"))
SYSTEM = ("system", "developer")
ANSWERS = ("tool", "function")
KNOWN_KEYS = frozenset(
    (
        "role", "content", "name", "tool_calls", "tool_call_id", "function_call", "weight", "train",
        "reasoning_content", "reasoning", "thinking", "refusal", "audio", "id",
    )
)  # fmt: skip


def check(row: Row, say: Say) -> None:
    """Check all turns of a row; marks it broken on an error, and collects its texts by side."""
    if row.broken:
        return
    if row.text is not None:
        row.texts.append(("text", row.text))
        return
    assert row.messages is not None
    if row.chosen is None or row.rejected is None:
        _conversation(row, row.messages, say)
        return
    if row.messages:
        _messages(row, row.messages, say, "prompt")
    for side, turns in (("chosen", row.chosen), ("rejected", row.rejected)):
        roles = _messages(row, turns, say, side)
        if roles and roles[-1] != "assistant":
            say("no_final_assistant")
    if _bare(row.chosen) == _bare(row.rejected):
        say("chosen_equals_rejected")


def _bare(turns: list[Message]) -> list[tuple[Any, Any, Any]]:
    """Turns without the white space by which two answers may differ."""
    contents = [(turn, turn.get("content")) for turn in turns]
    return [(t.get("role"), " ".join(c.split()) if isinstance(c, str) else c, t.get("tool_calls")) for t, c in contents]


def _conversation(row: Row, messages: list[Message], say: Say) -> None:
    roles = _messages(row, messages, say)
    if roles is None:
        return
    if all(role in SYSTEM for role in roles):
        say("only_system")
        row.broken = True
        return
    if any(role in SYSTEM for role in roles[1:]):
        say("system_not_first")
    if not _takes_turns(roles, messages):
        say("role_order")
    if "assistant" not in roles:
        say("no_final_assistant", subtype="no_assistant")
        row.broken = True
    elif roles[-1] != "assistant":
        say("no_final_assistant")
    calls = [message for message, role in zip(messages, roles, strict=True) if role == "assistant" and _calls(message)]
    if calls or row.tools or any(role in ANSWERS for role in roles):
        _tool_calls(row, messages, say)


def _messages(row: Row, messages: list[Message], say: Say, side: str = "") -> list[str] | None:
    """Check each message by itself; the roles in lower case, or None when one has no usable role."""
    roles: list[str] = []
    for message in messages:
        role = _role(message, say)
        if role is None:
            row.broken = True
        else:
            roles.append(role)
        if text := _content(row, message, role or "", say):
            row.texts.append((side or ("assistant" if role == "assistant" else role or ""), text))
        for call in _calls(message):
            # What a call says is trained like any other word of the assistant.
            row.texts.append((side or "assistant", json.dumps(call, ensure_ascii=False, sort_keys=True)))
        if not KNOWN_KEYS.issuperset(message):
            for key in message.keys() - KNOWN_KEYS:
                say("unknown_key", key)
    return roles if len(roles) == len(messages) else None


def _role(message: Message, say: Say) -> str | None:
    role = message.get("role")
    if isinstance(role, str) and role in ROLES:
        return role
    if role is None:
        say("missing_role")
        return None
    if not isinstance(role, str):
        say("unknown_role", type_name(role))
        return None
    lower = role.strip().lower()
    if lower in ROLES:
        say("role_case", role)
        return lower
    say("unknown_role", role)
    return None


def _calls(message: Message) -> list[Any]:
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        return calls
    if "function_call" not in message:
        return []
    call = message.get("function_call")
    return [call] if isinstance(call, dict) else []


def _content(row: Row, message: Message, role: str, say: Say) -> str:
    """The text of a message; says what is wrong with its content."""
    where = role or _("a message")
    content = message.get("content")
    if isinstance(content, str):
        if is_blank(content) and not _may_be_empty(message, role):
            # An empty system turn or tool answer can be trained; an empty question or answer teaches nothing.
            hard = role not in (*SYSTEM, *ANSWERS)
            say("empty_content", where, "" if hard else "other")
            row.broken |= hard
        return content
    if content is None:
        if message.get("tool_calls") and not isinstance(message["tool_calls"], list):
            say("tool_arguments_bad_json", type_name(message["tool_calls"]), "calls")
            row.broken = True
        elif not _calls(message):
            say("null_content" if "content" in message else "missing_content", where)
            row.broken = True
        return ""
    if isinstance(content, list):
        return _parts(row, content, where, say)
    say("non_string_content", type_name(content))
    row.broken = True
    return ""


def _may_be_empty(message: Message, role: str) -> bool:
    return role == "assistant" and bool(
        _calls(message) or message.get("reasoning_content") or message.get("reasoning") or message.get("thinking")
    )


def _parts(row: Row, parts: list[Any], where: str, say: Say) -> str:
    texts = []
    for part in parts:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict) and part.get("type", "text") == "text" and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            kind = part.get("type") if isinstance(part, dict) else type_name(part)
            say("non_text_part", str(kind))
            row.broken = True
            return "\n".join(texts)
    text = "\n".join(texts)
    if is_blank(text):
        say("empty_content", where)
        row.broken = True
    else:
        say("content_parts")
    return text


def _takes_turns(roles: list[str], messages: list[Message]) -> bool:
    """Whether user and assistant alternate, the user first; tools answer the assistant's calls in between."""
    expected = {"user"}
    for role, message in zip(roles, messages, strict=True):
        if role in SYSTEM:
            continue
        if role not in expected:
            return False
        if role == "user":
            expected = {"assistant"}
        elif role == "assistant":
            expected = {"tool", "function"} if _calls(message) else {"user"}
        else:
            expected = {"assistant", "tool", "function"}
    return True


def _tool_calls(row: Row, messages: list[Message], say: Say) -> None:
    declared = _declared(row, say)
    made: set[Any] = set()
    for message in messages:
        for call in _calls(message):
            function = call.get("function", call) if isinstance(call, dict) else None
            if not isinstance(function, dict) or not isinstance(function.get("name"), str):
                say("tool_arguments_bad_json")
                row.broken = True
                continue
            if function["name"] not in declared:
                say("tool_not_declared", function["name"])
            arguments = _object(function.get("arguments", {}))
            if arguments is None:
                say("tool_arguments_bad_json")
                row.broken = True
            elif absent := [name for name in declared.get(function["name"], ()) if name not in arguments]:
                say("tool_schema", ", ".join(absent), "required")
            if isinstance(call.get("id"), str):
                if call["id"] in made:
                    say("tool_call_id_mismatch", subtype="twice")
                made.add(call["id"])
        answered = message.get("tool_call_id")
        if answered is not None and not (isinstance(answered, str) and answered in made):
            say("tool_call_id_mismatch")


def _object(arguments: Any) -> dict[str, Any] | None:
    """Arguments as an object, strict JSON where they are a text; None where they are none."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments, parse_constant=_refuse)
        except (ValueError, RecursionError):
            return None
    return {} if arguments is None else arguments if isinstance(arguments, dict) else None


def _refuse(word: str) -> None:
    raise ValueError(word)


def _declared(row: Row, say: Say) -> dict[str, list[str]]:
    """The names of the declared tools, with the parameters that each must be given."""
    names: dict[str, list[str]] = {}
    for tool in row.tools or []:
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(function, dict) or not isinstance(name, str) or not name:
            say("tool_schema", _("a tool without a name"))
            row.broken = True
            continue
        parameters = function.get("parameters")
        if parameters is not None and not isinstance(parameters, dict):
            say("tool_schema", _("parameters of {name} that are no object").format(name=name))
            row.broken = True
        required = parameters.get("required") if isinstance(parameters, dict) else None
        names[name] = [part for part in required if isinstance(part, str)] if isinstance(required, list) else []
    return names
