"""LoRA layers on their tensors: which tensor, with which scale, in which orientation; shapes and ranks checked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from engine.merge.adapter import Adapter, Lora
from engine.merge.base import Base, is_head
from engine.merge.match import Slice, experts, experts_are_transposed, find, is_conv1d, unknown
from engine.merge.report import Report
from engine.merge.tensors import FLOATS, Ref
from engine.text import _

Kind = Literal["linear", "embedding", "parameter", "experts", "bias", "rows"]


@dataclass(frozen=True)
class Op:
    """One addition to a tensor.

    `linear` and `embedding` add scale * B A (with DoRA's magnitude where there is one), `parameter` the same rounded
    first, `experts` a stack of them or one expert's rows of it, `bias` a vector; `rows` replaces rows.
    """

    kind: Kind
    scale: float = 1.0
    a: Ref | None = None
    b: Ref | None = None
    magnitude: Ref | None = None
    transposed: bool = False
    experts: int = 1
    expert: int | None = None
    low: int = 0
    high: int = 0
    rows: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As the child reads it."""
        refs = {name: ref and ref.to_json() for name, ref in (("a", self.a), ("b", self.b), ("m", self.magnitude))}
        rest = {key: value for key, value in vars(self).items() if key not in ("a", "b", "magnitude")}
        return {**rest, **refs}

    @staticmethod
    def from_json(value: dict[str, Any]) -> Op:
        """The inverse of `to_json`."""
        refs = {name: Ref.from_json(value[name]) if value[name] else None for name in ("a", "b", "m")}
        fields = {key: part for key, part in value.items() if key not in ("a", "b", "m")}
        fields.update(a=refs["a"], b=refs["b"], magnitude=refs["m"], rows=tuple(value["rows"]))
        return Op(**fields)


@dataclass(frozen=True)
class Placed:
    """An addition and the tensor it is for."""

    tensor: str
    op: Op


def place(base: Base, adapter: Adapter, sources: dict[str, Ref], report: Report) -> Iterator[Placed]:
    """All additions that the adapter's LoRA layers make; what does not fit is reported.

    Args:
        base: the base model.
        adapter: the adapter.
        sources: each tensor as it is before the additions (the adapter may have replaced it).
        report: takes what is wrong.
    """
    parameters = [name for name in adapter.config.get("target_parameters") or [] if isinstance(name, str)]
    for lora in adapter.loras:
        if lora.a is None or lora.b is None:
            continue
        own = [name for name in parameters if _holds(lora.module, name)]
        if own and not lora.embedding:
            yield from _parameter(base, adapter, lora, lora.a, lora.b, own, sources, report)
        else:
            yield from _module(base, adapter, lora, lora.a, lora.b, sources, report)


def _holds(module: str, parameter: str) -> bool:
    """Whether a target parameter (`experts.down_proj`) is one of this module."""
    owner = parameter.rpartition(".")[0]
    return bool(owner) and (module == owner or module.endswith(f".{owner}"))


def _tensor(base: Base, module: str, sources: dict[str, Ref]) -> tuple[str, Ref] | None:
    """A layer's weight; that of a tied output layer is the embedding's."""
    name = find(base, f"{module}.weight")
    if base.tied and is_head(f"{module}.weight") and base.embedding:
        return name or f"{module}.weight", base.tensors[base.embedding]
    return (name, sources[name]) if name else None


def _module(
    base: Base, adapter: Adapter, lora: Lora, a: Ref, b: Ref, sources: dict[str, Ref], report: Report
) -> Iterator[Placed]:
    found = _tensor(base, lora.module, sources)
    if found is None or lora.depth:
        for key in lora.keys:
            unknown(base, key, lora.module, report)
        return
    name, weight = found
    if not _ranks(adapter.rank(lora.module), a, b, lora.module, report):
        return
    shape = (b.shape[0], a.shape[1])  # (out, in)
    fits, fits_transposed = weight.shape == shape, weight.shape == shape[::-1]
    transposed = (
        True
        if lora.embedding
        else is_conv1d(base, lora.module, bool(adapter.config.get("fan_in_fan_out")), fits, fits_transposed)
    )
    if not (fits_transposed if transposed else fits):
        wanted = shape[::-1] if transposed else shape
        _mismatch(name, weight.shape, wanted, report)
        if (is_head(name) or name == base.embedding) and weight.shape[1:] == wanted[1:]:
            detail = _("{name}: the adapter is for {new} tokens, the base has {old}").format(
                name=name, new=wanted[0], old=weight.shape[0]
            )
            report.add("vocab_resized", "warning", detail, name, fix=_("give the resized base with --base DIR"))
        return
    if weight.dtype not in FLOATS:
        detail = _("{name} is stored as {dtype}").format(name=name, dtype=weight.dtype)
        report.add("quantized_base", "error", detail, name)
        return
    if lora.magnitude is not None:
        length = 1
        for n in lora.magnitude.shape:
            length *= n
        if length != shape[0]:
            _mismatch(f"{lora.module}.lora_magnitude_vector", lora.magnitude.shape, (shape[0],), report)
            return
    scale = adapter.scale(lora.module)
    kind: Kind = "embedding" if lora.embedding else "linear"
    yield Placed(name, Op(kind, scale, a, b, lora.magnitude, transposed))
    if lora.bias is not None:
        bias = find(base, f"{lora.module}.bias")
        if bias is None:
            detail = _("{module} has a LoRA bias, and the base's layer has none").format(module=lora.module)
            report.add("unsupported_adapter", "error", detail, lora.module)
        elif base.tensors[bias].shape != lora.bias.shape:
            _mismatch(bias, base.tensors[bias].shape, lora.bias.shape, report)
        else:
            yield Placed(bias, Op("bias", scale, b=lora.bias))


def _ranks(rank: int, a: Ref, b: Ref, name: str, report: Report) -> bool:
    if a.shape[0] == b.shape[1] == rank:
        return True
    detail = _("{name}: the config says rank {rank}, lora_A has {a} and lora_B {b}").format(
        name=name, rank=rank, a=a.shape[0], b=b.shape[1]
    )
    report.add("rank_mismatch", "error", detail, name)
    return False


def _mismatch(name: str, has: tuple[int, ...], wants: tuple[int, ...], report: Report) -> None:
    detail = _("{name} is {has}, the adapter is for {wants}").format(
        name=name, has=list(has)[:8], wants=list(wants)[:8]
    )
    report.add("shape_mismatch", "error", detail, name)


# Parameters targeted by name: the experts of a mixture, in one stack


def _parameter(
    base: Base,
    adapter: Adapter,
    lora: Lora,
    a: Ref,
    b: Ref,
    targets: list[str],
    sources: dict[str, Ref],
    report: Report,
) -> Iterator[Placed]:
    """The one target parameter of the module that these tensors are for: their keys do not say which.

    PEFT nests one wrapper for each parameter, so their shapes decide, and where these say nothing, nothing is merged.
    """
    fitting = []
    for target in targets:
        name = f"{lora.module}.{target.rpartition('.')[2]}"
        stack = _stack(base, name, sources)
        if stack is None:
            continue
        shape, slices = stack
        rank = adapter.rank(name)
        count = shape[0] if len(shape) == 3 else 1
        if a.shape[0] != rank * count or b.shape[1] != rank * count:
            continue
        inner = shape[-2:]
        fits, swapped = (b.shape[0], a.shape[1]) == inner, (a.shape[1], b.shape[0]) == inner
        transposed = len(shape) == 3 and swapped and (not fits or experts_are_transposed(base))
        if fits or transposed:
            fitting.append((name, slices, count, transposed))
    if len(fitting) != 1:
        _no_parameter(base, lora, a, b, adapter, targets, bool(fitting), sources, report)
        return
    name, slices, count, transposed = fitting[0]
    scale = adapter.scale(name)
    if slices is None:
        kind: Kind = "experts" if count > 1 else "parameter"
        tensor = find(base, name)
        assert tensor is not None
        yield Placed(tensor, Op(kind, scale, a, b, transposed=transposed, experts=count))
        return
    for part in slices:
        op = Op("experts", scale, a, b, experts=count, expert=part.expert, low=part.low, high=part.high)
        yield Placed(part.tensor, op)


def _stack(base: Base, name: str, sources: dict[str, Ref]) -> tuple[tuple[int, ...], list[Slice] | None] | None:
    """The shape of a parameter, and its parts where the base holds them apart."""
    if tensor := find(base, name):
        shape = sources[tensor].shape
        return (shape, None) if len(shape) in (2, 3) else None
    slices = experts(base, name)
    if not slices:
        return None
    count = slices[-1].expert + 1
    first = [part for part in slices if part.expert == 0]
    columns = {base.tensors[part.tensor].shape[1:] for part in slices}
    heights = {tuple(p.high - p.low for p in slices if p.expert == e) for e in range(count)}
    if len(columns) != 1 or len(heights) != 1 or len(next(iter(columns))) != 1:
        return None
    return (count, first[-1].high, *next(iter(columns))), slices


def _no_parameter(
    base: Base,
    lora: Lora,
    a: Ref,
    b: Ref,
    adapter: Adapter,
    targets: list[str],
    several: bool,
    sources: dict[str, Ref],
    report: Report,
) -> None:
    names = [f"{lora.module}.{target.rpartition('.')[2]}" for target in targets]
    stacks = {name: stack[0] for name in names if (stack := _stack(base, name, sources))}
    if several:
        detail = _("the tensors of {module} fit several of its parameters").format(module=lora.module)
        report.add("unsupported_adapter", "error", detail, lora.module)
    elif not stacks:
        for key in lora.keys:
            unknown(base, key, lora.module, report)
    else:
        name, shape = next(iter(stacks.items()))
        if a.shape[0] != b.shape[1] or a.shape[0] % adapter.rank(name):
            _ranks(adapter.rank(name), a, b, lora.module, report)
        else:
            _mismatch(name, shape, (b.shape[0], a.shape[1]), report)
