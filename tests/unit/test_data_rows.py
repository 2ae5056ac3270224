"""Forms of rows and what must be true of their turns."""

from __future__ import annotations

import json

import pytest

from engine.data.forms import check_columns
from engine.errors import UsageError
from tests.support.data import check_rows, lines, of_kind, problems, talk

USER = {"role": "user", "content": "How long do eggs boil?"}
ANSWER = {"role": "assistant", "content": "Eight minutes or so."}
OTHER = {"role": "assistant", "content": "Nobody can know that."}


def row(*messages, **columns):
    return {"messages": list(messages), **columns}


def share(*turns, **columns):
    return {"conversations": [{"from": who, "value": what} for who, what in turns], **columns}


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (row(USER, ANSWER), "messages"),
        ({"conversations": [USER, ANSWER]}, "messages"),
        (share(("system", "Be brief."), ("human", "How long?"), ("gpt", "Eight minutes.")), "sharegpt"),
        (share(("human", "How long?"), ("gpt", "Eight minutes."), system="Be brief."), "sharegpt"),
        ({"instruction": "How long?", "input": "", "output": "Eight minutes."}, "alpaca"),
        ({"instruction": "How long?", "output": "Eight minutes.", "history": [["a b", "c d"]]}, "alpaca"),
        ({"prompt": "How long?", "completion": "Eight minutes."}, "prompt_completion"),
        ({"prompt": [USER], "completion": [ANSWER]}, "prompt_completion"),
        ({"text": "Eggs boil for eight minutes."}, "text"),
        ({"prompt": "How long?", "chosen": "Eight minutes.", "rejected": "No idea."}, "preference"),
        ({"chosen": "Q: how long? A: eight.", "rejected": "Q: how long? A: who knows."}, "preference"),
        ({"chosen": [USER, ANSWER], "rejected": [USER, OTHER]}, "preference"),
        ({"prompt": [USER], "chosen": [ANSWER], "rejected": [OTHER]}, "preference"),
        ({"prompt": [USER], "chosen": [USER, ANSWER], "rejected": [USER, OTHER]}, "preference"),
    ],
)
def test_every_form_is_recognized_and_right(value, form, tmp_path):
    report = check_rows(tmp_path, [value])
    assert (report.format, report.usable, problems(report)) == (form, 1, set())


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ({"foo": 1}, "missing_messages"),
        ({}, "missing_messages"),
        ({"messages": json.dumps([USER, ANSWER])}, "messages_not_list"),
        ({"messages": {"role": "user"}}, "messages_not_list"),
        ({"messages": None}, "messages_not_list"),
        ({"messages": ["hello"]}, "messages_not_list"),
        ({"messages": []}, "empty_messages"),
        (row({"role": "user"}, ANSWER), "missing_content"),
        (row({"role": "user", "content": {"text": "x"}}, ANSWER), "non_string_content"),
        (row({"role": "user", "content": " \n"}, ANSWER), "empty_content"),
        (row(USER, {"role": "assistant", "content": []}), "empty_content"),
        (row({"role": 7, "content": "x"}, ANSWER), "unknown_role"),
        (row(USER), "no_final_assistant"),
        (row({"role": "user", "content": [{"type": "audio", "audio": "x"}]}, ANSWER), "non_text_part"),
        (share(("human", "How long?"), ("chef", "Eight minutes.")), "unknown_role"),
        ({"conversations": [{"value": "x"}, {"from": "gpt", "value": "y"}]}, "missing_role"),
        ({"instruction": "How long?"}, "missing_content"),
        ({"instruction": "How long?", "output": None}, "null_content"),
        ({"prompt": "How long?"}, "missing_content"),
        ({"prompt": "How long?", "completion": ""}, "empty_content"),
        ({"prompt": 3, "completion": "x"}, "non_string_content"),
        ({"text": ""}, "empty_content"),
        ({"text": None}, "null_content"),
        ({"prompt": "How long?", "rejected": "No idea."}, "missing_chosen"),
        ({"chosen": "x y z", "rejected": None}, "null_content"),
        (row(USER, ANSWER, tools=[{"type": "function", "function": {}}]), "tool_schema"),
        (row(USER, ANSWER, tools="[{"), "tool_schema"),
    ],
)
def test_errors(value, kind, tmp_path):
    report = check_rows(tmp_path, [talk("A good row?", "Yes, it is one."), value])
    assert [(f.level, f.lines) for f in of_kind(report, kind)] == [("error", [2])]
    assert report.usable == 1 or kind == "tool_schema"


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (row(ANSWER), "role_order"),
        (row(USER, ANSWER, ANSWER), "role_order"),
        (row(USER, {"role": "tool", "content": "5"}, ANSWER), "role_order"),
        (row(USER, ANSWER, USER), "no_final_assistant"),
        (row(USER, {"role": "system", "content": "x"}, ANSWER), "system_not_first"),
        (row({"role": "USER", "content": "x y"}, ANSWER), "role_case"),
        (row({"role": "system", "content": ""}, USER, ANSWER), "empty_content"),
        ({"prompt": "How long?", "chosen": "the same", "rejected": "the same"}, "chosen_equals_rejected"),
        ({"chosen": [USER, ANSWER], "rejected": [{**USER, "content": "And now?"}, OTHER]}, "prompt_differs"),
        ({"prompt": [USER], "chosen": [USER, ANSWER], "rejected": [{**USER, "content": "?"}, OTHER]}, "prompt_differs"),
        ({"text": "ok"}, "too_short"),
        (row(USER, {"role": "assistant", "content": "..."}), "too_short"),
    ],
)
def test_warnings(value, kind, tmp_path):
    report = check_rows(tmp_path, [value])
    assert [f.level for f in of_kind(report, kind)] == ["warning"]
    assert report.usable == 1


def test_answers_of_a_word_are_a_note_only(tmp_path):
    report = check_rows(tmp_path, [talk("Is it spam: win now?", "spam"), talk("Is it spam: dinner at 8?", "no")])
    assert (problems(report), lines(report, "too_short", "word")) == (set(), [1, 2])


CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "function": {"name": "add", "arguments": {}}}],
}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "5"}


def with_call(arguments, **columns):
    call = {"role": "assistant", "tool_calls": [{"id": "c1", "function": {"name": "add", "arguments": arguments}}]}
    return row(USER, call, RESULT, ANSWER, **({"tools": [TOOL]} | columns))


def test_tool_calls(tmp_path):
    rows = [
        row(USER, CALL, RESULT, ANSWER, tools=[TOOL]),
        row(USER, CALL, RESULT, ANSWER, tools=json.dumps([TOOL["function"]])),
        row(USER, CALL, RESULT, RESULT, ANSWER, tools=[TOOL]),
        with_call('{"a": 2}'),
        row(USER, CALL, tools=[TOOL]),
    ]
    bad = [
        with_call("[1]"),
        with_call("{'a': 2}"),
        with_call({}, tools=[]),
        row(USER, CALL, {**RESULT, "tool_call_id": "c2"}, ANSWER, tools=[TOOL]),
    ]
    report = check_rows(tmp_path, rows + bad)
    assert lines(report, "tool_arguments_bad_json") == [6, 7]
    assert lines(report, "tool_not_declared") == [8]
    assert lines(report, "tool_call_id_mismatch") == [9]
    assert not {"role_order", "null_content", "missing_content"} & problems(report)


def test_calls_in_sharegpt(tmp_path):
    call = json.dumps({"name": "add", "arguments": {"a": 2}})
    good = share(
        ("human", "2+3?"), ("function_call", call), ("observation", "5"), ("gpt", "It is 5."), tools=json.dumps([TOOL])
    )
    bad = share(("human", "2+3?"), ("function_call", "add(2)"), ("observation", "5"), ("gpt", "It is 5."))
    report = check_rows(tmp_path, [good, bad])
    assert (lines(report, "tool_arguments_bad_json"), report.usable) == ([2], 1)
    assert problems(report) == {"tool_arguments_bad_json"}


def test_mixed_forms_types_and_extra_columns(tmp_path):
    rows = [
        talk("What is a roux?", "Flour and fat, cooked.", source="a", id=1),
        talk("Why did it not rise?", "The yeast was old.", source="b", id="two"),
        {"text": "Basil stands in a glass of water."},
    ]
    report = check_rows(tmp_path, rows)
    (mixed,) = of_kind(report, "mixed_formats")
    assert (mixed.lines, mixed.extra["by_format"]) == ([3], {"messages": [1, 2], "text": [3]})
    (extra,) = of_kind(report, "extra_column")
    assert "source" in extra.detail and "id" in extra.detail and extra.count == 2
    assert lines(report, "mixed_types", "unused") == [2]
    assert report.format == "mixed"


def test_columns_by_other_names(tmp_path):
    rows = [{"question": "How long?", "answer": "Eight minutes.", "prompt": 7}]
    report = check_rows(tmp_path, rows, columns=check_columns({"prompt": "question", "completion": "answer"}))
    assert (report.format, report.usable, problems(report)) == ("prompt_completion", 1, set())
    with pytest.raises(UsageError, match="promt"):
        check_columns({"promt": "question"})


def test_a_million_bad_rows_make_a_short_report(tmp_path):
    rows = [row({"role": f"role {n}", "content": "x"}, ANSWER, **{f"column {n}": 1}) for n in range(3000)]
    report = check_rows(tmp_path, rows)
    assert len(json.dumps(report.to_json())) < 10_000
    (found,) = of_kind(report, "unknown_role")
    assert (found.count, len(found.lines)) == (3000, 20)
