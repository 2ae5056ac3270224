"""Prompts and answers as token ids, made once for both models. Loads transformers."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.errors import UsageError
from engine.evaluate.loss import IGNORED
from engine.evaluate.store import digest
from engine.text import _


@dataclass
class Input:
    """One row's tokens: the prompt, and prompt with the expected answer where only the answer counts."""

    id: str
    prompt: list[int] | None = None
    scored: tuple[list[int], list[int]] | None = None
    problem: str | None = None
    keys: dict[str, str] = field(default_factory=dict)

    @property
    def sha256(self) -> str | None:
        """Hash of exactly the tokens that are put in."""
        return digest(self.prompt) if self.prompt is not None else None


def encode(tokenizer: Any, rows: list[dict[str, Any]], context: int | None, max_new_tokens: int) -> list[Input]:
    """The rows' tokens; a row that cannot be asked says why in `problem`.

    Raises:
        UsageError: the rows are conversations and the tokenizer has no chat template.
    """
    if not tokenizer.chat_template and any(row.get("messages") for row in rows):
        raise UsageError(
            _("the tokenizer has no chat template, and the rows are conversations"),
            where=str(tokenizer.name_or_path),
            fix=_("set chat_template_path in the recipe, or give rows with plain prompts"),
            kind="no_chat_template",
        )
    return [_encode(tokenizer, row, context, max_new_tokens) for row in rows]


def _encode(tokenizer: Any, row: dict[str, Any], context: int | None, max_new_tokens: int) -> Input:
    found = Input(row["id"])
    try:
        prompt, whole = _tokens(tokenizer, row)
    except Exception as error:  # noqa: BLE001 - a template raises whatever its author chose
        text = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        found.problem = _("the chat template refuses it: {reason}").format(reason=text)
        return found
    if not prompt:
        found.problem = _("the prompt has no tokens")
    elif context is not None and len(prompt) + max_new_tokens > context:
        found.problem = _("{n} tokens of prompt and {new} of answer are more than the context of {context}").format(
            n=len(prompt), new=max_new_tokens, context=context
        )
    else:
        found.prompt = prompt
    if whole is not None and (context is None or len(whole) <= context) and len(whole) > len(prompt):
        found.scored = (whole, [IGNORED] * len(prompt) + whole[len(prompt) :])
    return found


def _tokens(tokenizer: Any, row: dict[str, Any]) -> tuple[list[int], list[int] | None]:
    reference = row.get("reference")
    if row.get("messages") is None:
        prompt = list(tokenizer(row["text"])["input_ids"])
        if reference is None:
            return prompt, None
        return prompt, _continued(prompt, tokenizer(row["text"] + reference)["input_ids"], tokenizer.eos_token_id)
    options = {"tokenize": True, "return_dict": True, **(row.get("chat_template_kwargs") or {})}
    if row.get("tools"):
        options["tools"] = row["tools"]
    messages = row["messages"]
    prompt = list(tokenizer.apply_chat_template(messages, add_generation_prompt=True, **options)["input_ids"])
    if reference is None:
        return prompt, None
    answered = [*messages, {"role": "assistant", "content": reference}]
    whole = tokenizer.apply_chat_template(answered, **options)["input_ids"]
    return prompt, _continued(prompt, whole, None)


def _continued(prompt: list[int], whole: Any, end: int | None) -> list[int] | None:
    """Prompt and answer, where the one is the beginning of the other; some templates change what came before."""
    tokens = [*whole, *([end] if end is not None else [])]
    return tokens if tokens[: len(prompt)] == prompt else None


def context_of(folder: str) -> int | None:
    """The context of a model, by its config."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    length = getattr(text, "max_position_embeddings", None) or getattr(text, "n_positions", None)
    return int(length) if isinstance(length, int) and length > 0 else None


def stop_tokens(folders: list[str], tokenizer: Any) -> list[int]:
    """The tokens that end an answer of either model: the same for both."""
    from engine.files import read_json

    found: set[int] = set()
    for folder in folders:
        for name in ("generation_config.json", "config.json"):
            value = (read_json(Path(folder) / name) or {}).get("eos_token_id")
            found.update(v for v in (value if isinstance(value, list) else [value]) if isinstance(v, int))
    if tokenizer.eos_token_id is not None:
        found.add(int(tokenizer.eos_token_id))
    return sorted(found)
