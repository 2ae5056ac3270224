"""What is wrong with a model's chat template and special tokens for training, found by rendering a conversation."""

from __future__ import annotations

from collections.abc import Iterator

from engine.data.forms import Row
from engine.data.template import TemplateError
from engine.data.tokens import Encoded, Model

SYSTEM, QUESTION, ANSWER = "zq system words", "zq question words", "zq answer words"


def problems(model: Model, *, conversations: int, with_system: int) -> Iterator[tuple[str, str, str]]:
    """Each problem as (kind, subtype, value).

    Args:
        model: the model.
        conversations: rows that are trained through the template.
        with_system: rows that begin with a system turn.
    """
    eos, pad = model.special.get("eos_token"), model.special.get("pad_token")
    if eos and (pad is None or pad == eos):
        yield "pad_is_eos", "", eos
    template = model.template
    if template is None:
        if model.template_problem:
            yield "template_error", "compile", model.template_problem
        elif conversations:
            yield "no_chat_template", "", ""
        return
    if not conversations:
        return
    if not template.has_markers:
        yield "no_generation_markers", "", ""
    elif model.trl_form is not None:
        yield "no_generation_markers", "trl", model.trl_form
    talk = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER}]
    (encoded,) = model.encode([Row("messages", talk)])
    if not isinstance(encoded, Encoded):
        return  # the rows themselves will say so
    if with_system:
        try:
            text, _spans = template.render([{"role": "system", "content": SYSTEM}, *talk])
        except TemplateError:
            text = SYSTEM  # refused, not dropped: again the rows say so
        if SYSTEM not in text:
            yield "system_dropped", "", ""
    bos = model.special.get("bos_token")
    if bos and encoded.text.startswith(bos):
        twice = model.tokenizer.encode(encoded.text).ids[:2]
        if twice == [model.tokenizer.token_to_id(bos)] * 2:
            yield "double_bos", "", bos
    if eos and not any(
        trained and token == model.tokenizer.token_to_id(eos)
        for token, trained in zip(encoded.ids, encoded.trained, strict=True)
    ):
        yield "eos_not_trained", "", eos
