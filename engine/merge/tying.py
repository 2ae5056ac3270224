"""Tied embeddings: whether the merged model still has one matrix for input and output.

What counts is what base and adapter compute together. An adapter that changes one side only unties the two: the
output embedding becomes a tensor of its own and `tie_word_embeddings` false. (`merge_and_unload` does so for
modules_to_save; a LoRA layer on one side it adds to both, since they share memory, which nothing was trained for.)
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from engine.merge.base import Base, is_head
from engine.merge.report import Report
from engine.merge.tensors import Ref
from engine.text import _

if TYPE_CHECKING:
    from engine.merge.plan import Output, Plan


def head_of(base: Base, name: str, outputs: dict[str, Output]) -> Output:
    """The output embedding of a tied base, as it is before the adapter: the input embedding as stored."""
    assert base.embedding is not None
    embedding = outputs[base.embedding]
    return dataclasses.replace(embedding, name=name, source=base.tensors[base.embedding], ops=[], changed=True)


def settle(plan: Plan, outputs: dict[str, Output], heads: dict[str, Output], report: Report) -> set[str]:
    """Decide whether the embeddings stay tied; stored copies that are no longer true are named in the result.

    Args:
        plan: its config is set.
        outputs: all tensors of the base as they will be.
        heads: output embeddings that the adapter gives a tied base; emptied when they are the input embedding again.
        report: takes the warning.
    """
    base = plan.base
    removed: set[str] = set()
    if base.tied and base.embedding:
        embedding = outputs[base.embedding]
        if heads and not all(_same(embedding, head) for head in heads.values()):
            _untie(plan, next(iter(heads)), report)
        elif not heads and _only_input_changed(plan, embedding):
            name = base.head or "lm_head.weight"
            heads[name] = head_of(base, name, outputs)
            _untie(plan, name, report)
        else:
            heads.clear()
            if embedding.changed and base.head:
                removed.add(base.head)  # loading ties it again whatever it holds, but not every reader does
    if plan.vocab is not None:
        _resize(plan, outputs, heads, removed, report)
    return removed


def _only_input_changed(plan: Plan, embedding: Output) -> bool:
    config = plan.adapter.config
    if not embedding.changed or config.get("ensure_weight_tying"):
        return False
    if embedding.ops:
        return embedding.ops[-1].kind != "rows"  # trained tokens are kept tied
    saved = config.get("modules_to_save") or []
    return plan.vocab is None and any(embedding.name.removesuffix(".weight").endswith(name) for name in saved)


def _same(embedding: Output, head: Output) -> bool:
    """Whether both come out equal: the same bytes, or LoRA factors that are each other's transpose."""
    one, other = embedding.source, head.source
    if one != other and (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    if one != other and one.read() != other.read():
        return False
    if len(embedding.ops) != len(head.ops):
        return False
    return all(
        e.kind == "embedding" and h.kind == "linear" and e.scale == h.scale and not e.magnitude and not h.magnitude
        and _transposed(e.b, h.a) and _transposed(e.a, h.b)
        for e, h in zip(embedding.ops, head.ops, strict=True)
    )  # fmt: skip


def _transposed(one: Ref | None, other: Ref | None) -> bool:
    import numpy as np

    if one is None or other is None or one.dtype != other.dtype or one.shape != other.shape[::-1]:
        return False
    kind = "<u4" if one.dtype == "F32" else "<u2"
    first = np.frombuffer(one.read(), kind).reshape(one.shape)
    second = np.frombuffer(other.read(), kind).reshape(other.shape)
    return bool(np.array_equal(first.T, second))


def _untie(plan: Plan, name: str, report: Report) -> None:
    for part in (plan.config, plan.config.get("text_config")):
        if isinstance(part, dict) and (part is plan.config or "tie_word_embeddings" in part):
            part["tie_word_embeddings"] = False
    detail = _("the base ties {embedding} and {head}; with the adapter they differ, so both are written").format(
        embedding=plan.base.embedding, head=name
    )
    report.add("tied_embeddings_untied", "warning", detail, name)


def _resize(
    plan: Plan, outputs: dict[str, Output], heads: dict[str, Output], removed: set[str], report: Report
) -> None:
    """A grown vocabulary: both embeddings must have as many rows as the config will say."""
    rows = {
        output.name: output.source.shape[0]
        for output in [*outputs.values(), *heads.values()]
        if output.name not in removed and (output.name == plan.base.embedding or is_head(output.name))
    }
    if len(set(rows.values())) > 1:
        detail = _("input and output embedding would have different numbers of rows: {rows}").format(
            rows=", ".join(f"{name} {count}" for name, count in rows.items())
        )
        report.add("shape_mismatch", "error", detail, next(iter(rows)))
    for part in (plan.config, plan.config.get("text_config")):
        if isinstance(part, dict) and "vocab_size" in part:
            part["vocab_size"] = plan.vocab
