"""What a merge will do to every tensor, decided from headers alone.

`draw` matches each tensor of the adapter with the base and reports all that does not fit; `Plan.to_json` is the
child's whole instruction.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

from engine.checkpoint.tensors import BITS
from engine.merge import fp8, layers, tying
from engine.merge.adapter import Adapter
from engine.merge.base import Base, is_head
from engine.merge.layers import Op
from engine.merge.match import find, unknown
from engine.merge.report import Report
from engine.merge.tensors import FLOATS, Ref, size_of
from engine.text import _

HEADER_ROOM = 16 * 1024 * 1024  # headers, tokenizer and the other small files


@dataclass
class Output:
    """A tensor of the merged model: where its bytes come from and what is added to them."""

    name: str
    source: Ref
    dtype: str
    ops: list[Op] = field(default_factory=list)
    changed: bool = False
    scale: str | None = None  # the type of its scales, one for each row, where it is FP8

    @property
    def size(self) -> int:
        """Its bytes in the merged file."""
        scales = size_of(self.scale, self.source.shape[:1]) if self.scale else 0
        return size_of(self.dtype, self.source.shape) + scales


@dataclass
class Plan:
    """The merged model, file by file."""

    base: Base
    adapter: Adapter
    shards: list[tuple[str, list[Output]]]
    config: dict[str, Any]
    dtype: str
    vocab: int | None = None  # the new number of rows, when tokens were added
    quantized: dict[str, Any] | None = None  # how the base was quantized that the result shall be merged into

    @property
    def outputs(self) -> list[Output]:
        """All tensors."""
        return [output for _name, outputs in self.shards for output in outputs]

    @property
    def merged(self) -> int:
        """How many tensors differ from the base's."""
        return sum(output.changed for output in self.outputs)

    @property
    def bytes(self) -> int:
        """What the merged files take."""
        return sum(output.size for output in self.outputs)

    @property
    def numbers(self) -> int:
        """How many numbers the model has."""
        return sum(output.source.size * 8 // BITS[output.source.dtype] for output in self.outputs)

    def to_json(self) -> dict[str, Any]:
        """What the child needs."""
        return {
            "dtype": self.dtype,
            "vocab": self.vocab,
            "quantized": self.quantized,
            "shards": [
                {
                    "file": name,
                    "tensors": [
                        {
                            "name": output.name,
                            "dtype": output.dtype,
                            "source": output.source.to_json(),
                            "ops": [op.to_json() for op in output.ops],
                            "changed": output.changed,
                            "scale": output.scale,
                        }
                        for output in outputs
                    ],
                }
                for name, outputs in self.shards
            ],
        }


def draw(
    base: Base,
    adapter: Adapter,
    dtype: str | None,
    report: Report,
    *,
    shard: int | None = None,
    quantized: dict[str, Any] | None = None,
) -> Plan:
    """Decide about every tensor; what does not fit is reported, and then the plan must not be carried out.

    Args:
        base: the base model.
        adapter: the adapter.
        dtype: the type of the merged model as safetensors calls it; None keeps the base's.
        report: takes what is wrong.
        shard: the most bytes of a file; None keeps the base's files.
        quantized: how the base was quantized (engine.merge.nf4), to merge into that instead.
    """
    main, wanted = base.dtype, dtype
    if dtype == fp8.DTYPE:
        dtype = fp8.carrier(main)  # until `fp8.mark` says which tensors become it
    outputs = {}
    for name, ref in base.tensors.items():
        # A tensor that the base keeps in a type of its own (a router in float32) was kept so on purpose.
        kept = dtype is None or ref.dtype != main or ref.dtype not in FLOATS
        outputs[name] = Output(name, ref, ref.dtype if kept or dtype is None else dtype)
    plan = Plan(base, adapter, [], copy.deepcopy(base.config), wanted or main, quantized=quantized)
    heads: dict[str, Output] = {}  # output embeddings that are the input embedding until now
    _replace(plan, outputs, heads, report)
    for placed in layers.place(base, adapter, {name: out.source for name, out in outputs.items()}, report):
        target = outputs.get(placed.tensor)
        if target is None:
            target = heads.setdefault(placed.tensor, tying.head_of(base, placed.tensor, outputs))
        target.ops.append(placed.op)
        target.changed = True
    _tokens(adapter, base, outputs, report)
    _check_complete(adapter, base, {name for name, output in outputs.items() if output.changed} | heads.keys(), report)
    if not report.broken:
        removed = tying.settle(plan, outputs, heads, report)
        _lay_out(plan, outputs, heads, removed)
        if dtype is not None:
            _set_dtype(plan.config, dtype)
        if wanted == fp8.DTYPE:
            fp8.mark(base, plan.outputs, plan.config, report)
        if shard is not None:
            plan.shards = _divided(plan.outputs, shard)
    return plan


def _replace(plan: Plan, outputs: dict[str, Output], heads: dict[str, Output], report: Report) -> None:
    """Tensors that the adapter holds whole: modules_to_save, biases, embeddings of a grown vocabulary."""
    base = plan.base
    for parameter, (key, ref) in plan.adapter.full.items():
        name = find(base, parameter)
        if base.tied and is_head(parameter) and base.embedding:
            head = tying.head_of(base, name or parameter, outputs)
            heads[head.name] = head
            target = head
        elif name is None and is_head(parameter) and base.embedding:
            report.add("unsupported_base", "error", _("the base is not tied and lacks {name}").format(name=parameter))
            continue
        elif name is None:
            unknown(base, key, parameter, report)
            continue
        else:
            target = outputs[name]
        _check_shape(plan, target, ref, report)
        target.source = ref
        target.changed = True


def _check_shape(plan: Plan, target: Output, ref: Ref, report: Report) -> None:
    old, new = target.source.shape, ref.shape
    if old == new:
        return
    words = is_head(target.name) or target.name == plan.base.embedding
    if words and len(old) == len(new) == 2 and old[1] == new[1] and new[0]:
        plan.vocab = max(plan.vocab or 0, new[0])
        detail = _("{name} has {new} rows, the base {old}: the vocabulary was resized").format(
            name=target.name, new=new[0], old=old[0]
        )
        report.add("vocab_resized", "warning", detail, target.name)
        return
    detail = _("{name} is {new} in the adapter and {old} in the base").format(
        name=target.name, new=list(new)[:8], old=list(old)[:8]
    )
    report.add("shape_mismatch", "error", detail, target.name)


def _tokens(adapter: Adapter, base: Base, outputs: dict[str, Output], report: Report) -> None:
    """Single rows of an embedding that were trained (trainable_token_indices)."""
    for module, (key, ref) in adapter.tokens.items():
        name = find(base, f"{module}.weight")
        if name is None:
            unknown(base, key, module, report)
            continue
        indices = adapter.token_indices(module)
        target = outputs[name]
        shape = target.source.shape
        if indices is None or len(indices) != ref.shape[0] or shape[1:] != ref.shape[1:]:
            detail = _("{key} does not go with trainable_token_indices and the base").format(key=key)
            report.add("shape_mismatch", "error", detail, key)
        elif any(not 0 <= index < shape[0] for index in indices):
            report.add("shape_mismatch", "error", _("a token index lies outside of the vocabulary"), key)
        elif target.ops:
            detail = _("{module} has both LoRA and trained tokens").format(module=module)
            report.add("unsupported_adapter", "error", detail, module)
        else:
            target.ops.append(Op("rows", b=ref, rows=tuple(indices)))
            target.changed = True


def _check_complete(adapter: Adapter, base: Base, changed: set[str], report: Report) -> None:
    """What the config says was trained and the file does not hold."""
    whole = {name.rpartition(".")[0] for name in adapter.full}
    for name in _listed(adapter.config.get("modules_to_save")):
        if not any(_ends(module, name) or f".{name}." in f".{module}." for module in whole):
            detail = _("modules_to_save names {name}, and the adapter does not hold it").format(name=name)
            report.add("modules_to_save_missing", "error", detail, name)
    config = adapter.config
    limited = any(config.get(key) for key in ("layers_to_transform", "layers_pattern", "exclude_modules"))
    targets = () if limited else _listed(config.get("target_modules"))
    for tensor, ref in base.tensors.items():
        module = tensor.removesuffix(".weight")
        if module == tensor or tensor in changed or len(ref.shape) != 2:
            continue
        if any(_ends(module, name) for name in targets):
            detail = _("target_modules names {module}, and the adapter has nothing for it").format(module=module)
            report.add("lora_module_missing", "warning", detail, module)


def _listed(value: Any) -> list[str]:
    return [name for name in value if name] if isinstance(value, list) else []


def _ends(name: str, end: str) -> bool:
    return name == end or name.endswith(f".{end}")


def _lay_out(plan: Plan, outputs: dict[str, Output], heads: dict[str, Output], removed: set[str]) -> None:
    """The files of the base, with what is new beside the embedding that it comes from."""
    for shard in plan.base.shards:
        rows = [heads.get(name) or outputs[name] for name in shard.tensors if name not in removed]
        if plan.base.embedding in shard.tensors:
            rows += [head for name, head in heads.items() if name not in plan.base.tensors]
        plan.shards.append((shard.name, rows))


def _divided(outputs: list[Output], limit: int) -> list[tuple[str, list[Output]]]:
    """Files of at most `limit` bytes, in the base's order; a larger tensor has a file of its own."""
    files: list[list[Output]] = []
    room = 0
    for output in outputs:
        if output.size > room or not files:
            files.append([])
            room = limit
        files[-1].append(output)
        room -= output.size
    if len(files) == 1:
        return [("model.safetensors", files[0])]
    return [(f"model-{n:05d}-of-{len(files):05d}.safetensors", part) for n, part in enumerate(files, 1)]


def _set_dtype(config: dict[str, Any], dtype: str) -> None:
    name = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}[dtype]
    for part in (config, config.get("text_config")):
        if isinstance(part, dict):
            keys = [key for key in ("dtype", "torch_dtype") if key in part]
            for key in keys or (["dtype"] if part is config else []):
                part[key] = name
