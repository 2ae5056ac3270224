"""What each kind of finding means: its level, what it says, and how it is fixed. Workers send kinds, not texts."""

from __future__ import annotations

import functools
from typing import NamedTuple

from engine.findings import Level
from engine.text import _


class Kind(NamedTuple):
    """Level and texts of one kind; `{values}` stands for what was seen, `{n}` for how many rows."""

    level: Level
    detail: str
    fix: str


@functools.cache
def catalogue() -> dict[str, Kind]:
    """All kinds by name; `kind.subtype` goes before `kind`. In the user's language at the first call."""
    return {**_file_kinds(), **_row_kinds(), **_text_kinds(), **_set_kinds(), **_model_kinds()}


def lookup(kind: str, subtype: str) -> Kind:
    """The texts of a kind, of its subtype where that has its own."""
    table = catalogue()
    return table.get(f"{kind}.{subtype}") or table[kind]


def _file_kinds() -> dict[str, Kind]:
    correct = _("correct or delete these lines")
    return {
        "empty_file": Kind("error", _("the file has no rows"), _("give a file with rows in it")),
        "bom": Kind(
            "note", _("the file begins with a UTF-8 byte order mark; it was skipped"), _("save it as UTF-8 without BOM")
        ),
        "encoding": Kind(
            "error",
            _("bytes that are not UTF-8, the first at byte {byte_offset} ({values}?); these rows were left out"),
            _("convert the file: iconv -f {values} -t UTF-8 OLD > NEW"),
        ),
        "encoding.utf": Kind(
            "error",
            _("the file is {values}, not UTF-8 (seen at byte {byte_offset}); it was read through a conversion"),
            _("convert it: iconv -f {values} -t UTF-8 OLD > NEW"),
        ),
        "line_endings": Kind("note", _("lines end with CRLF"), _("nothing needs to be done; dos2unix makes it LF")),
        "line_endings.cr": Kind(
            "warning", _("lines end with CR alone; they were read as lines"), _("mac2unix makes it LF")
        ),
        "blank_line": Kind("note", _("blank lines"), _("nothing needs to be done")),
        "long_line": Kind(
            "warning", _("a row of {values}; it will be cut at max_length"), _("split it into several rows")
        ),
        "bad_json": Kind("error", _("not strict JSON: {values}"), correct),
        "bad_json.deep": Kind("error", _("nested too deeply to be a training row"), correct),
        "non_finite_number": Kind(
            "error", _("{values} is not JSON, and no number either"), _("write null or a number instead")
        ),
        "lone_surrogate": Kind(
            "error",
            _("half of a \\ud83d\\ude00 pair: this text cannot be written as UTF-8"),
            _("delete the \\ud… escape, or give it its other half"),
        ),
        "duplicate_key": Kind(
            "warning", _("a key stands twice in one object ({values}); the last one was taken"), _("delete one of them")
        ),
        "row_not_object": Kind("error", _("a row must be a JSON object; this one is {values}"), correct),
        "container": Kind(
            "warning",
            _("the file is {values} where one JSON object a line was expected; its rows were read"),
            _("write one object a line: jq -c '.[]' OLD > NEW"),
        ),
        "container.object": Kind(
            "warning",
            _("the file is {values} where one JSON object a line was expected; its rows were read"),
            _("write one object a line: jq -c . OLD > NEW"),
        ),
        "container.csv": Kind(
            "warning",
            _("the file is {values} under a name that does not say so; its rows were read"),
            _("rename the file"),
        ),
        "compressed": Kind(
            "warning",
            _("{values} data under a name that does not say so; it was read unpacked"),
            _("rename the file (.gz, .zst), or unpack it"),
        ),
        "compressed.not": Kind(
            "warning", _("the name says {values}, but the data is not packed"), _("rename the file")
        ),
        "compressed.archive": Kind(
            "error", _("{values} archive: it cannot be read as rows"), _("unpack it first, or pack it as .gz or .zst")
        ),
        "compressed.damaged": Kind(
            "error", _("the packed data is damaged or cut off: {values}"), _("copy or pack the file again")
        ),
        "file_changed": Kind(
            "error",
            _("the file changed while it was read"),
            _("check again when nothing writes to it any more, or check a copy"),
        ),
        "binary": Kind("error", _("this is not text but {values}"), _("give JSON lines, JSON, CSV, TSV or Parquet")),
        "csv_delimiter": Kind(
            "warning",
            _("the columns are separated by '{values}', not by the usual sign"),
            _("say --delimiter, or use ,"),
        ),
        "csv_field_count": Kind(
            "error", _("records whose number of fields is not the header's: {values}"), _("correct these records")
        ),
        "csv_unclosed_quote": Kind(
            "error", _('a quote (") that is not closed, or text after a closing one'), _('close it; write " as ""')
        ),
        "csv_header.index": Kind("note", _("the first column has no name (pandas writes its index so)"), ""),
        "csv_header": Kind(
            "error", _("the header line names a column twice or not at all: {values}"), _("give every column a name")
        ),
    }


def _row_kinds() -> dict[str, Kind]:
    return {
        "missing_messages": Kind(
            "error",
            _("rows of no known form; they have: {values}"),
            _("use messages, conversations, instruction + output, prompt + completion, text, or chosen + rejected"),
        ),
        "missing_messages.columns": Kind(
            "error",
            _("rows of no known form; their columns can be mapped: {values}"),
            _("give {values}, or dataset_columns in the recipe"),
        ),
        "messages_not_list": Kind(
            "error", _("the messages are {values} where a list of messages belongs"), _("make it a list of messages")
        ),
        "empty_messages": Kind("error", _("the list of messages is empty"), _("delete these rows")),
        "missing_role": Kind(
            "error", _("a message without a role"), _("say who speaks: system, user, assistant, tool")
        ),
        "unknown_role": Kind(
            "error", _("unknown roles: {values}"), _("use system, user, assistant, tool, or map the names to these")
        ),
        "role_case": Kind("warning", _("roles not in lower case: {values}"), _("write them in lower case")),
        "role_order": Kind(
            "warning", _("user and assistant do not take turns"), _("join or remove turns; some templates refuse these")
        ),
        "system_not_first": Kind(
            "warning", _("a system turn that is not the first"), _("move it to the beginning; some templates refuse it")
        ),
        "only_system": Kind("error", _("only system turns: there is nothing to learn"), _("delete these rows")),
        "no_final_assistant": Kind(
            "warning", _("the row does not end with the assistant"), _("cut what follows the last answer")
        ),
        "no_final_assistant.no_assistant": Kind(
            "error", _("no assistant turn: there is nothing to learn"), _("add the answer or delete the row")
        ),
        "null_content": Kind("error", _("content is null in: {values}"), _("fill it or delete the row")),
        "missing_content": Kind("error", _("no content: {values}"), _("fill it or delete the row")),
        "empty_content": Kind("error", _("empty text in: {values}"), _("fill it or delete the row")),
        "empty_content.other": Kind("warning", _("empty text in: {values}"), _("fill it or delete the turn")),
        "non_string_content": Kind("error", _("content that is not text but {values}"), _("make it text")),
        "content_parts": Kind(
            "note", _("content in parts; the text parts are joined"), _("nothing needs to be done for text parts")
        ),
        "non_text_part": Kind(
            "error",
            _("content parts that are not text: {values}"),
            _("remove these rows: a text model cannot learn from them"),
        ),
        "unknown_key": Kind("note", _("keys of messages that training does not use: {values}"), ""),
        "extra_column": Kind("note", _("columns that training does not use: {values}"), ""),
        "mixed_formats": Kind(
            "warning",
            _("rows of several forms in one file: {values}"),
            _("put each form into a file of its own; each row was read by its own form"),
        ),
        "mixed_types": Kind(
            "warning", _("columns with values of different types: {values}"), _("give each column one type")
        ),
        "mixed_types.unused": Kind("note", _("unused columns with values of different types: {values}"), ""),
        "missing_chosen": Kind("error", _("preference rows without 'chosen'"), _("add it or delete the row")),
        "missing_rejected": Kind("error", _("preference rows without 'rejected'"), _("add it or delete the row")),
        "chosen_equals_rejected": Kind(
            "warning", _("chosen and rejected are the same: nothing is preferred"), _("delete these rows")
        ),
        "prompt_differs": Kind(
            "warning",
            _("chosen and rejected answer different prompts"),
            _("compare two answers to one prompt"),
        ),
        "tool_arguments_bad_json": Kind(
            "error", _("arguments of a tool call that are not a JSON object"), _("correct or delete these rows")
        ),
        "tool_arguments_bad_json.calls": Kind(
            "error", _("tool_calls that are {values} where a list of calls belongs"), _("make it a list of calls")
        ),
        "tool_not_declared": Kind(
            "warning", _("calls of tools that the row does not declare: {values}"), _("add them to the row's 'tools'")
        ),
        "tool_call_id_mismatch": Kind(
            "warning", _("a tool's answer names a call that was not made"), _("make tool_call_id the id of the call")
        ),
        "tool_call_id_mismatch.twice": Kind(
            "warning", _("two calls of a row have one id"), _("give each call an id of its own")
        ),
        "tool_schema.required": Kind(
            "warning", _("calls without parameters that the tool requires: {values}"), _("correct these calls")
        ),
        "tool_schema": Kind(
            "error", _("'tools' cannot be used: {values}"), _("make it a list of functions with name and parameters")
        ),
        "dropped_row": Kind("note", _("rows that were marked as dropped; training leaves them out"), ""),
        "too_short": Kind("warning", _("rows too short to teach anything"), _("delete these rows")),
        "too_short.word": Kind(
            "note", _("answers of one short word"), _("good for labels; otherwise there is little to learn from them")
        ),
    }


def _text_kinds() -> dict[str, Kind]:
    strip = _("remove them; they are invisible to you and not to the model")
    return {
        "zero_width": Kind("warning", _("invisible characters inside words: {values}"), strip),
        "bidi_control": Kind("warning", _("characters that turn the direction of writing: {values}"), strip),
        "control_char": Kind("warning", _("control characters: {values}"), strip),
        "ansi_escape": Kind("warning", _("escape sequences of a terminal"), strip),
        "tag_characters": Kind("warning", _("invisible tag characters: they can hide a whole text"), strip),
        "replacement_char": Kind(
            "warning", _("the sign �: text was lost in a conversion before"), _("take these rows from the source again")
        ),
        "mojibake": Kind(
            "warning",
            _("text read in the wrong encoding (for example {values})"),
            _("read the source again as UTF-8, or repair it with ftfy"),
        ),
        "pii": Kind(
            "warning", _("personal data, {subtype}: {values}"), _("mask or drop it, unless the model shall learn it")
        ),
        "pii.person": Kind(
            "warning",
            _("names of people: {values} (found by a language model: some are missed, some are none)"),
            _("look at some of these rows; names are not masked"),
        ),
        "pii.name": Kind(
            "note",
            _("what may be names of people: {values} (found by a few rules: many are missed, some are none)"),
            _("look at some of these rows"),
        ),
        "secret": Kind(
            "warning", _("secrets, {subtype}: {values}"), _("revoke them where they are real, then mask or drop them")
        ),
    }


def _set_kinds() -> dict[str, Kind]:
    return {
        "duplicate": Kind("warning", _("exact duplicates of earlier rows"), _("delete these rows")),
        "near_duplicate": Kind(
            "warning",
            _("nearly the same as earlier rows (about {threshold} or more of the words in common)"),
            _("delete what says nothing new"),
        ),
        "label_conflict": Kind(
            "warning",
            _("the same two answers are preferred the other way round in another row"),
            _("decide which one is better"),
        ),
        "label_conflict.answer": Kind(
            "warning",
            _("one prompt with different answers of one word"),
            _("decide which answer is right"),
        ),
        "train_eval_overlap": Kind(
            "warning", _("rows for evaluation that are in the training data"), _("delete them on one side")
        ),
        "train_eval_overlap.near": Kind(
            "warning", _("rows for evaluation that are nearly in the training data"), _("delete them on one side")
        ),
        "train_eval_prompt_overlap": Kind(
            "warning",
            _("rows for evaluation whose prompt is in the training data, with another answer"),
            _("delete them on one side, unless the answers are meant to vary"),
        ),
        "boilerplate": Kind("note", _("one answer given in many rows: {values}"), _("keep a few of them")),
        "boilerplate.phrase": Kind(
            "note", _("answers in the set words of another model: {values}"), _("rewrite or delete them")
        ),
        "languages": Kind("note", _("languages, by the first words of the rows: {values}"), ""),
    }


def _model_kinds() -> dict[str, Kind]:
    return {
        "truncated": Kind(
            "warning",
            _("rows longer than max_length {max_length}: their end is cut off"),
            _("raise max_length, or split these rows"),
        ),
        "no_trained_tokens": Kind(
            "error",
            _("no trained token is left: the answers begin after max_length {max_length}"),
            _("raise max_length, shorten the prompts, or delete these rows"),
        ),
        "no_trained_tokens.none": Kind(
            "error", _("the chat template marks no token of these rows as the assistant's"), _("correct the template")
        ),
        "no_generation_markers": Kind(
            "warning",
            _("the chat template has no {{% generation %}} marks: with assistant_only_loss 0 tokens would be trained"),
            _("set assistant_only_loss: false, or chat_template_path to a template with the marks"),
        ),
        "no_generation_markers.trl": Kind(
            "note",
            _("the chat template has no {{% generation %}} marks; TRL trains with its own form of it ({values})"),
            "",
        ),
        "template_error": Kind(
            "error", _("the chat template refuses rows: {values}"), _("correct the rows, or use another template")
        ),
        "template_error.system": Kind(
            "error",
            _("the chat template refuses a system turn: {values}"),
            _("put its text into the first user turn, or use another template"),
        ),
        "template_error.compile": Kind(
            "error",
            _("the chat template does not compile: {values}"),
            _("copy the model's files again, or set chat_template_path"),
        ),
        "no_chat_template": Kind(
            "error",
            _("the model has no chat template, and the rows are conversations"),
            _("set chat_template_path, or use the chat version of the model"),
        ),
        "system_dropped": Kind(
            "warning", _("the chat template leaves the system turn out"), _("put its text into the first user turn")
        ),
        "double_bos": Kind(
            "warning",
            _("the chat template writes {values}, and the tokenizer adds it again to plain text"),
            _("tokenize without special tokens where the template was used (TRL does)"),
        ),
        "eos_not_trained": Kind(
            "warning",
            _("no answer ends with a trained {values}: the model will not learn to stop"),
            _("use a template that closes the assistant's turn with it inside the marks, or set eos_token"),
        ),
        "pad_is_eos": Kind(
            "note",
            _("the pad token is the end token {values}: where padding is masked by its id, stopping is not learned"),
            _("use a pad token of its own; TRL masks padding by position"),
        ),
    }
