"""Whether the tokenizer that goes along knows tokens that the model has no row for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.files import read_json
from engine.merge.report import Report
from engine.text import _, number


def check(base: Path, adapter: Path, rows: int | None, report: Report) -> None:
    """Report a tokenizer that is larger than the embedding: its last tokens would stop the model.

    Args:
        base: the base model's folder.
        adapter: the adapter's folder, whose tokenizer goes before the base's.
        rows: the number of rows of the merged embedding, when it is known.
        report: takes the warning.
    """
    own = (adapter / "tokenizer.json").is_file()
    tokenizer = read_json((adapter if own else base) / "tokenizer.json")
    if rows is None or not isinstance(tokenizer, dict):
        return
    most = max(_ids(tokenizer), default=-1)
    if most >= rows:
        detail = _("the tokenizer has {tokens} tokens, the embedding {rows} rows: a resized embedding is missing")
        detail = detail.format(tokens=number(most + 1), rows=number(rows))
        fix = _("save the adapter with its embeddings (save_embedding_layers=True), or use the base's tokenizer")
        report.add("vocab_resized", "warning", detail, "tokenizer.json", fix=fix)


def _ids(tokenizer: dict[str, Any]) -> Iterator[int]:
    model = tokenizer.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocab, dict):
        yield from (value for value in vocab.values() if isinstance(value, int))
    elif isinstance(vocab, list):
        yield len(vocab) - 1
    for token in tokenizer.get("added_tokens") or []:
        if isinstance(token, dict) and isinstance(token.get("id"), int):
            yield token["id"]
