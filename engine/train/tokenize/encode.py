"""Rows as tokens and labels: the template rendered once a row, the tokenizer run over many rows at a time.

Token by token what TRL's trainers make of the same rows; the first rows of each run are compared with what
transformers makes of them (`text.Reference`). Loads no torch, so that each worker process is small.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.data.template import Span, Template, TemplateError
from engine.data.tokens import mask
from engine.text import _

IGNORED = -100  # the label of a token that no loss is taken on
Ids = NDArray[np.int32]


@dataclass(frozen=True)
class Spec:
    """What the tokens of a row depend on, besides the row. Goes to worker processes."""

    tokenizer: str  # the tokenizer as JSON
    template: str | None
    special: dict[str, Any]  # the special tokens by name, as templates see them
    eos: str
    task: str = "sft"
    text_field: str = "text"
    assistant_only: bool = False
    completion_only: bool = True  # of prompt + completion rows
    max_length: int | None = None  # None: nothing is cut here
    keep_end: bool = False


@dataclass
class Tokens:
    """One row, and whether max_length cut it."""

    ids: Ids
    labels: Ids
    truncated: bool = False


@dataclass
class Pair:
    """A preference row: what comes first, and both answers to it."""

    prompt: Ids
    chosen: Ids
    rejected: Ids
    truncated: bool = False  # the trainer cuts them as it puts a batch together


@dataclass
class Problem:
    """Why a row has no tokens that can be trained; `cut` when only max_length is to blame."""

    what: str
    cut: bool = False


Result = Tokens | Pair | Problem


@dataclass
class _Text:
    """A text to be tokenized for one row."""

    text: str
    special: bool = False  # whether the tokenizer adds its own beginning and end
    spans: list[Span] | None = None


@dataclass
class _Wanted:
    texts: list[_Text] = field(default_factory=list)
    problem: str | None = None


class Encoder:
    """Encodes rows by a spec.

    Raises:
        TemplateError: the template does not compile.
    """

    def __init__(self, spec: Spec) -> None:
        from tokenizers import Tokenizer

        self.spec = spec
        self.tokenizer = Tokenizer.from_str(spec.tokenizer)
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.template = Template(spec.template, spec.special) if spec.template else None

    def encode(self, rows: Sequence[dict[str, Any]]) -> list[Result]:
        """Tokens and labels of rows in the columns that `training.rows` gives, in their order."""
        wanted = [self._texts(row) for row in rows]
        plain = [text for want in wanted for text in want.texts if text.special]
        chats = [text for want in wanted for text in want.texts if not text.special]
        found: dict[int, Any] = {}
        for texts, special in ((plain, True), (chats, False)):
            # Places of characters are asked for only where a template marks some: they take a third of the time.
            run = self.tokenizer.encode_batch if any(text.spans for text in texts) else self.tokenizer.encode_batch_fast
            encodings = run([text.text for text in texts], add_special_tokens=special)
            found.update(zip(map(id, texts), encodings, strict=True))
        finish = self._pair if self.spec.task == "dpo" else self._row
        return [
            Problem(want.problem)
            if want.problem is not None
            else finish(want.texts, [found[id(t)] for t in want.texts])
            for want in wanted
        ]

    def _texts(self, row: dict[str, Any]) -> _Wanted:
        try:
            if self.spec.task == "dpo":
                return _Wanted(self._preference(row))
            return _Wanted(self._example(row))
        except TemplateError as error:
            return _Wanted(problem=_("the chat template refuses the row: {reason}").format(reason=str(error)[:200]))

    def _example(self, row: dict[str, Any]) -> list[_Text]:
        """The text to train on, then that of the prompt where there is one."""
        if "messages" in row:
            return [self._render(row["messages"], row)]
        if "prompt" not in row:
            return [_Text(self._ended(row[self.spec.text_field]), special=True)]
        prompt, completion = row["prompt"], row["completion"]
        if isinstance(prompt, list):
            return [
                self._render(prompt + completion, row),
                self._render(prompt, row, add_generation_prompt=True),
            ]
        return [_Text(prompt + self._ended(completion), special=True), _Text(prompt, special=True)]

    def _preference(self, row: dict[str, Any]) -> list[_Text]:
        prompt, chosen, rejected = row["prompt"], row["chosen"], row["rejected"]
        if isinstance(prompt, list):
            return [
                self._render(prompt, row, add_generation_prompt=True),
                self._render(prompt + chosen, row),
                self._render(prompt + rejected, row),
            ]
        answers = [_Text(prompt + self._ended(answer), special=True) for answer in (chosen, rejected)]
        return [_Text(prompt, special=True), *answers]

    def _render(
        self, messages: list[dict[str, Any]], row: dict[str, Any], add_generation_prompt: bool = False
    ) -> _Text:
        if self.template is None:
            raise TemplateError(_("the tokenizer has no chat template"))
        variables = row.get("chat_template_kwargs") or {}
        text, spans = self.template.render(
            messages, row.get("tools"), add_generation_prompt=add_generation_prompt, **variables
        )
        marked = self.spec.assistant_only and not add_generation_prompt
        return _Text(text, spans=spans if marked else None)

    def _ended(self, text: str) -> str:
        return text if text.endswith(self.spec.eos) else text + self.spec.eos

    def _row(self, texts: list[_Text], encodings: list[Any]) -> Result:
        ids = ids_of(encodings[0].ids)
        spans = texts[0].spans
        trained = None if spans is None else _trained(encodings[0], spans, len(ids), len(texts[0].text))
        return finished(self.spec, ids, trained, ids_of(encodings[1].ids) if len(encodings) > 1 else None)

    def _pair(self, _texts: list[_Text], encodings: list[Any]) -> Result:
        prompt, chosen, rejected = (ids_of(encoding.ids) for encoding in encodings)
        return finished_pair(self.spec, prompt, chosen, rejected)


def ids_of(values: Sequence[int]) -> Ids:
    """Token ids as they are stored."""
    return np.array(values, dtype=np.int32)


def finished(spec: Spec, ids: Ids, trained: NDArray[np.bool_] | None, prompt: Ids | None) -> Result:
    """A row as it is trained on: its labels, and not longer than it may be.

    Args:
        spec: what the recipe asks for.
        ids: the row.
        trained: where the template says that the assistant speaks; None where all of it counts.
        prompt: the tokens of the row's prompt alone, of rows with a prompt.
    """
    labels = ids.copy()
    if trained is not None:
        if not trained.any():
            return Problem(_("the chat template marks no word of the row as the assistant's"))
        labels[~trained] = IGNORED
    if prompt is not None and spec.completion_only:
        labels[: _common(prompt, ids)] = IGNORED
    if not (labels != IGNORED).any():
        return Problem(_("no token of the row is trained"))
    length = spec.max_length
    if length is None or len(ids) <= length:
        return Tokens(ids, labels)
    part = slice(-length, None) if spec.keep_end else slice(None, length)
    if not (labels[part] != IGNORED).any():
        return Problem(_("its answer lies beyond max_length"), cut=True)
    return Tokens(ids[part], labels[part], truncated=True)


def finished_pair(spec: Spec, prompt: Ids, chosen: Ids, rejected: Ids) -> Result:
    """A preference as it is trained on, from the tokens of the prompt alone and with each answer."""
    shared = min(_common(prompt, chosen), _common(prompt, rejected))
    pair = Pair(prompt[:shared], chosen[shared:], rejected[shared:])
    length = spec.max_length
    if length is not None:
        pair.truncated = max(len(chosen), len(rejected)) > length
        if not spec.keep_end:
            # An answer that is cut off whole teaches nothing, and two that are cut off alike are one.
            if shared >= length:
                return Problem(_("its prompt alone fills max_length"), cut=True)
            if pair.truncated and np.array_equal(chosen[:length], rejected[:length]):
                return Problem(_("its two answers differ beyond max_length only"), cut=True)
    return pair


def _common(a: Ids, b: Ids) -> int:
    """How many tokens two sequences begin with in common."""
    length = min(len(a), len(b))
    different = np.flatnonzero(a[:length] != b[:length])
    return int(different[0]) if len(different) else length


def _trained(encoding: Any, spans: list[Span], count: int, end_of_text: int) -> NDArray[np.bool_]:
    """Which tokens overlap a place that the assistant wrote.

    The tokenizer is asked for the tokens at the edges alone: a list of all places takes as long as the template.
    """
    trained = np.zeros(count, dtype=np.bool_)
    for start, end in spans:
        if start >= end:
            continue
        first = encoding.char_to_token(start)
        last = count if end >= end_of_text else encoding.char_to_token(end)
        if first is None or last is None:  # a character that no token holds: look at all of them
            return np.frombuffer(bytes(mask(encoding.offsets, spans)), dtype=np.bool_)
        if last < count and encoding.token_to_chars(last)[0] < end:
            last += 1  # one token with the last of the assistant's words and what follows
        trained[first:last] = True
    return trained
