"""The model's own tokenizer through transformers: what the workers need to know of it, and rows encoded by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.data.template import Template, TemplateError
from engine.data.tokens import training_form
from engine.errors import UsageError
from engine.text import _
from engine.train.job import Job
from engine.train.tokenize.encode import (
    Encoder,
    Pair,
    Problem,
    Result,
    Spec,
    Tokens,
    finished,
    finished_pair,
    ids_of,
)


def spec_of(job: Job, tokenizer: Any, *, conversational: bool, max_length: int | None) -> Spec:
    """What the tokens of this run's rows depend on.

    Args:
        job: the run.
        tokenizer: of transformers, with the recipe's template and end token.
        conversational: whether the rows are lists of messages.
        max_length: where rows are cut; None where packing does it.

    Raises:
        UsageError: the tokenizer has no template for conversations, or none that masks what is to be masked.
    """
    own = tokenizer.chat_template
    own = own.get("default") if isinstance(own, dict) else own
    if conversational and not own:
        raise UsageError(
            _("the tokenizer has no chat template, and the rows are conversations"),
            where="chat_template_path",
            fix=_("set chat_template_path to a .jinja file or to the tokenizer of the chat version of the model"),
            kind="no_chat_template",
        )
    if not tokenizer.eos_token and not conversational:
        raise UsageError(
            _("the tokenizer has no end token, so the model could not learn where a text ends"),
            where="eos_token",
            fix=_("set eos_token to one of the tokenizer's special tokens"),
            kind="no_eos_token",
        )
    special = dict(tokenizer.special_tokens_map)
    only_assistant, template = False, own
    if job.task == "sft":
        only_assistant, template = _assistant(job.recipe.get("assistant_only_loss"), own, special, conversational)
    if conversational:
        _compiles(str(template), special)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return Spec(
        tokenizer=backend.to_str() if backend is not None else "",
        template=template,
        special=special,
        eos=tokenizer.eos_token or "",
        task=job.task,
        text_field=str(job.get("dataset_text_field", "text")),
        assistant_only=only_assistant,
        completion_only=job.recipe.get("completion_only_loss") is not False,
        max_length=max_length,
        keep_end=job.get("truncation_mode") == "keep_end",
    )


def _assistant(
    wanted: bool | None, own: str | None, special: dict[str, Any], conversational: bool
) -> tuple[bool, str | None]:
    """Whether only the assistant's words count, and the template that marks them.

    `wanted` None: where rows and template allow it.
    """
    if wanted is False or (wanted is None and not conversational):
        return False, own
    if not conversational:
        raise UsageError(
            _("assistant_only_loss needs conversations, and the rows are not"),
            where="assistant_only_loss",
            fix=_("set assistant_only_loss: false"),
            kind="conflict",
        )
    form, _name = training_form(_compiles(str(own), special))
    if form is not None and form.has_markers:
        return True, form.text
    if wanted is None:
        return False, own
    raise UsageError(
        _("the chat template does not mark the assistant's words, so the loss cannot be limited to them"),
        where="assistant_only_loss",
        fix=_("set assistant_only_loss: false, or chat_template_path to a template with {% generation %} marks"),
        kind="template",
    )


def _compiles(text: str, special: dict[str, Any]) -> Template:
    try:
        return Template(text, special)
    except TemplateError as error:
        raise UsageError(
            _("the chat template is broken: {reason}").format(reason=str(error)[:300]),
            where="chat_template_path",
            fix=_("correct it, or set chat_template_path to another one"),
            kind="template",
        ) from error


class Reference:
    """Rows encoded one by one by the tokenizer itself, as TRL does it.

    It is what the first rows are compared with; where they differ, or the tokenizer has no form that workers can
    take, it encodes all of them.
    """

    def __init__(self, spec: Spec, tokenizer: Any) -> None:
        self.spec = spec
        self.tokenizer = tokenizer

    def encode(self, rows: Sequence[dict[str, Any]]) -> list[Result]:
        """Tokens and labels of rows, in their order."""
        return [self._encode(row) for row in rows]

    def _encode(self, row: dict[str, Any]) -> Result:
        try:
            if self.spec.task == "dpo":
                return self._preference(row)
            return self._example(row)
        except Exception as error:  # noqa: BLE001 - whatever the template or the tokenizer's own code raises
            reason = (str(error) or type(error).__name__)[:200]
            return Problem(_("the chat template refuses the row: {reason}").format(reason=reason))

    def _example(self, row: dict[str, Any]) -> Result:
        spec = self.spec
        if "messages" in row:
            return finished(spec, *self._chat(row["messages"], row), None)
        if "prompt" not in row:
            return finished(spec, self._text(self._ended(row[spec.text_field])), None, None)
        prompt, completion = row["prompt"], row["completion"]
        if isinstance(prompt, list):
            alone, _mask = self._chat(prompt, row, add_generation_prompt=True)
            return finished(spec, *self._chat(prompt + completion, row), alone)
        return finished(spec, self._text(prompt + self._ended(completion)), None, self._text(prompt))

    def _preference(self, row: dict[str, Any]) -> Result:
        prompt, answers = row["prompt"], (row["chosen"], row["rejected"])
        if isinstance(prompt, list):
            alone, _mask = self._chat(prompt, row, add_generation_prompt=True)
            return finished_pair(self.spec, alone, *(self._chat(prompt + answer, row)[0] for answer in answers))
        whole = (self._text(prompt + self._ended(answer)) for answer in answers)
        return finished_pair(self.spec, self._text(prompt), *whole)

    def _chat(self, messages: list[dict[str, Any]], row: dict[str, Any], *, add_generation_prompt: bool = False) -> Any:
        marked = self.spec.assistant_only and not add_generation_prompt
        found = self.tokenizer.apply_chat_template(
            messages,
            tools=row.get("tools"),
            chat_template=self.spec.template if self.spec.assistant_only else None,
            add_generation_prompt=add_generation_prompt,
            tokenize=True,
            return_dict=True,
            return_assistant_tokens_mask=marked,
            **(row.get("chat_template_kwargs") or {}),
        )
        return ids_of(found["input_ids"]), np.array(found["assistant_masks"], np.bool_) if marked else None

    def _text(self, text: str) -> Any:
        return ids_of(self.tokenizer(text=text)["input_ids"])

    def _ended(self, text: str) -> str:
        return text if text.endswith(self.spec.eos) else text + self.spec.eos


def encoder_for(spec: Spec, tokenizer: Any, rows: Sequence[dict[str, Any]]) -> Encoder | Reference:
    """The quick encoder when it does the same as the tokenizer itself with these rows; else the tokenizer itself."""
    reference = Reference(spec, tokenizer)
    named = tokenizer.chat_template if isinstance(tokenizer.chat_template, dict) else {}
    if not spec.tokenizer or "tool_use" in named:  # a template of its own for rows with tools
        return reference
    quick = Encoder(spec)
    ours, theirs = quick.encode(rows), reference.encode(rows)
    return quick if all(map(_same, ours, theirs)) else reference


def _same(one: Result, other: Result) -> bool:
    if isinstance(one, Tokens) and isinstance(other, Tokens):
        return np.array_equal(one.ids, other.ids) and np.array_equal(one.labels, other.labels)
    if isinstance(one, Pair) and isinstance(other, Pair):
        sides = ("prompt", "chosen", "rejected")
        return all(np.array_equal(getattr(one, side), getattr(other, side)) for side in sides)
    return type(one) is type(other)
