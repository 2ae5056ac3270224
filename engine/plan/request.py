"""A planner request: what is asked, checked key by key."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from engine.errors import UsageError
from engine.plan import models
from engine.plan.shapes import Shape, target_names
from engine.text import _, ngettext

METHODS = ("full", "lora", "qlora")
SHARDINGS = ("auto", "none", "ddp", "fsdp1", "fsdp2", "zero1", "zero2", "zero3", "pipeline")
LOSSES = ("full", "chunked", "liger")
QUANTS = ("nf4", "nf4-dq", "fp4", "gptq", "int8")
TASKS = ("sft", "dpo", "pretrain")
DTYPES = {"fp32": "fp32", "float32": "fp32", "bf16": "bf16", "bfloat16": "bf16", "fp16": "bf16", "float16": "bf16"}
MEASURED = {"measured_gb", "measured_kind", "tokens_per_s", "source", "run", "quality"}


@dataclass(frozen=True)
class Request:
    """One request. Field names are the contract's; every field has the value that the plan counts with."""

    shape: Shape
    model: str
    method: str = "lora"
    task: str = "sft"
    id: str | int | None = None
    lora_r: int = 16
    lora_targets: frozenset[str] = frozenset()
    lora_dropout: float = 0.05
    use_dora: bool = False
    lora_modules_to_save: tuple[str, ...] = ()
    lora_dtype: str = "fp32"
    bf16_master: str = "bf16"
    kbit_prepare: bool = False
    quant: str = "nf4-dq"
    optim: str = "adamw_torch"
    max_length: int = 1024
    per_device_train_batch_size: int = 1
    per_device_eval_batch_size: int | None = None
    global_batch_size: int | None = None
    gradient_accumulation_steps: int | None = None
    gradient_checkpointing: bool = True
    attn_implementation: str = "sdpa"
    loss: str = "chunked"
    packing: bool = False
    lengths: tuple[tuple[int, int], ...] = ()  # (tokens, rows): the data's lengths
    lengths_estimated: bool = False  # not counted: good for the time, no bound for the memory
    rows: int | None = None
    train_tokens: float | None = None
    num_train_epochs: float = 1.0
    max_steps: int | None = None
    num_gpus: int = 1
    num_machines: int = 1
    sharding: str = "auto"
    reshard_after_forward: bool = True
    cpu_offload: bool = False
    precompute_ref: bool = False
    gpu: str | None = None
    gpu_memory_gb: float | None = None
    server: str | None = None
    checkpoints_kept: int = 3
    framework: str = "hf"
    transformers: float | None = None
    year: int | None = None
    fused_kernels: bool = False
    compile: bool = False
    optimizer_in_bwd: bool = False
    fp8: bool = False
    fsdp1_no_shard: bool = False
    untie: bool = False
    expandable_segments: bool = False
    notes: tuple[str, ...] = ()

    @property
    def longest(self) -> int:
        """Tokens of the longest row that can come: of the data where their lengths were counted, else `max_length`."""
        if self.lengths and not self.packing and not self.lengths_estimated:
            return min(self.max_length, max(length for length, rows in self.lengths if rows))
        return self.max_length

    @property
    def tokens(self) -> int:
        """Tokens of one micro-batch on one GPU: padded, or packed to the full length."""
        pairs = 2 if self.task == "dpo" else 1
        return self.longest * self.per_device_train_batch_size * pairs

    @property
    def experts_quantised(self) -> bool:
        """Whether a 4-bit base has its experts in 4 bits: transformers 5 fuses them, and bitsandbytes leaves them."""
        return (self.transformers or 0.0) < 5

    @property
    def accumulation(self) -> int:
        """Micro-batches of one step."""
        if self.gradient_accumulation_steps:
            return self.gradient_accumulation_steps
        if self.global_batch_size:
            return self.global_batch_size // (self.per_device_train_batch_size * self.data_parallel)
        return 1

    @property
    def data_parallel(self) -> int:
        """Ranks that read different data."""
        return 1 if self.sharding == "pipeline" else self.num_gpus

    def replace(self, **changes: Any) -> Request:
        """The request with other values (for advice and comparisons)."""
        return dataclasses.replace(self, **changes)


def _bad(key: str, text: str, fix: str | None = None) -> UsageError:
    return UsageError(text, where=key, fix=fix, kind="bad_value")


class _Reader:
    """Takes values out of a request, each with its type and bounds; what remains is unknown."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values
        self.seen: set[str] = set()

    def take(self, key: str) -> Any:
        self.seen.add(key)
        return self.values.get(key)

    def whole(self, key: str, high: int, low: int = 1) -> int | None:
        value = self.take(key)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise _bad(
                key,
                _("'{key}' must be a whole number from {low} to {high}, not {value}").format(
                    key=key, low=low, high=high, value=repr(value)[:40]
                ),
            )
        return value

    def number(self, key: str, high: float, low: float = 0.0, inclusive: bool = False) -> float | None:
        value = self.take(key)
        if value is None:
            return None
        fine = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not fine or not (low < value <= high or (inclusive and value == low)):
            raise _bad(
                key,
                _("'{key}' must be a number above {low:g} and at most {high:g}, not {value}").format(
                    key=key, low=low, high=high, value=repr(value)[:40]
                ),
            )
        return float(value)

    def flag(self, key: str) -> bool | None:
        value = self.take(key)
        if value is None or isinstance(value, bool):
            return value
        raise _bad(key, _("'{key}' must be true or false, not {value}").format(key=key, value=repr(value)[:40]))

    def choice(self, key: str, allowed: tuple[str, ...]) -> str | None:
        value = self.take(key)
        if value is None:
            return None
        if not isinstance(value, str) or value not in allowed:
            raise _bad(
                key,
                _("'{key}' must be one of {allowed}, not {value}").format(
                    key=key, allowed=", ".join(allowed), value=repr(value)[:40]
                ),
            )
        return value

    def text(self, key: str) -> str | None:
        value = self.take(key)
        if value is None:
            return None
        if not isinstance(value, str) or not value.strip() or len(value) > 300:
            raise _bad(key, _("'{key}' must be a short text, not {value}").format(key=key, value=repr(value)[:40]))
        return value.strip()

    def strings(self, key: str) -> list[str] | None:
        value = self.take(key)
        if value is None:
            return None
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list) or not items or not all(isinstance(i, str) and i for i in items):
            raise _bad(key, _("'{key}' must be a list of module names").format(key=key))
        return items

    def dtype(self, key: str) -> str | None:
        value = self.take(key)
        if value is None:
            return None
        if not isinstance(value, str) or value not in DTYPES:
            raise _bad(key, _("'{key}' must be fp32 or bf16, not {value}").format(key=key, value=repr(value)[:40]))
        return DTYPES[value]


def parse(values: dict[str, Any], *, resolve: Any = models.resolve) -> Request:
    """Check a request and fill in its defaults.

    Args:
        values: the request's fields (docs/planner.md); unknown ones become a note.
        resolve: finds the shape of a model's name (replaced in tests).

    Raises:
        UsageError: a value that makes no sense; `where` is the key.
    """
    if not isinstance(values, dict):
        raise UsageError(_("a request is an object with 'model' or 'config'"), kind="bad_request")
    read = _Reader(values)
    name = read.text("model")
    config = read.take("config")
    if name is None and config is None:
        raise _bad("model", _("a request needs 'model' or 'config'"))
    shape = resolve(name, config)
    fields: dict[str, Any] = {"shape": shape, "model": name or shape.name or shape.family}
    identity = read.take("id")
    fields["id"] = identity if isinstance(identity, int) else None if identity is None else str(identity)[:200]
    method = read.choice("method", METHODS) or "lora"
    fields["method"] = method
    fields["task"] = read.choice("task", TASKS)
    for key, high in (
        ("lora_r", 65536), ("max_length", 10**7), ("per_device_train_batch_size", 10**5),
        ("per_device_eval_batch_size", 10**5), ("global_batch_size", 10**7), ("gradient_accumulation_steps", 10**6),
        ("rows", 10**12), ("max_steps", 10**9), ("num_gpus", 65536), ("num_machines", 4096),
        ("checkpoints_kept", 1000), ("year", 2100),
    ):  # fmt: skip
        fields[key] = read.whole(key, high)
    for key, most, inclusive in (
        ("gpu_memory_gb", 1e5, False), ("train_tokens", 1e16, False), ("num_train_epochs", 1e4, False),
        ("lora_dropout", 0.99, True),
    ):  # fmt: skip
        fields[key] = read.number(key, most, 0.0, inclusive)
    for key in (
        "use_dora", "kbit_prepare", "gradient_checkpointing", "packing", "reshard_after_forward", "cpu_offload",
        "precompute_ref", "fused_kernels", "compile", "optimizer_in_bwd", "fp8", "fsdp1_no_shard", "untie",
        "expandable_segments", "lengths_estimated",
    ):  # fmt: skip
        fields[key] = read.flag(key)
    for key in ("gpu", "server", "framework", "optim"):
        fields[key] = read.text(key)
    fields["loss"] = read.choice("loss", LOSSES)
    fields["sharding"] = read.choice("sharding", SHARDINGS)
    fields["quant"] = read.choice("quant", QUANTS)
    fields["attn_implementation"] = _attention(read.text("attn_implementation"))
    fields["lora_dtype"] = read.dtype("lora_dtype")
    fields["bf16_master"] = read.dtype("bf16_master") or ("fp32" if method == "full" else "bf16")
    fields["transformers"] = _version(read.take("transformers"))
    modules = read.strings("lora_modules_to_save")
    fields["lora_modules_to_save"] = tuple(modules) if modules else None
    wanted = read.strings("lora_target_modules")
    fields["lengths"] = _lengths(read.take("length_histogram"))
    unknown = sorted(set(values) - read.seen - MEASURED)
    notes = list(shape.notes)
    if unknown:
        notes.append(_("unknown keys were ignored: {keys}").format(keys=", ".join(k[:40] for k in unknown[:20])))
    if method == "full":
        fields["lora_r"] = fields["lora_dropout"] = None
    else:
        fields["lora_targets"] = target_names(shape, wanted)
    request = Request(**{k: v for k, v in fields.items() if v is not None}, notes=tuple(notes))
    return _checked(request, values)


def _checked(request: Request, values: dict[str, Any]) -> Request:
    """What holds between keys."""
    shape = request.shape
    if request.method != "full":
        adapted = request.lora_targets - {"router"}  # as wide as there are experts: rank is no matter there
        sides = [min(lin.n_in, lin.n_out) for b in shape.blocks for lin in b.linears if lin.name in adapted]
        smallest = min([*sides, shape.vocab, shape.hidden])
        if request.lora_r > smallest:
            raise _bad(
                "lora_r",
                _("rank {r} is larger than a matrix that it goes on ({side} wide)").format(
                    r=request.lora_r, side=smallest
                ),
                _("a rank from 8 to 64 is usual"),
            )
    if shape.max_positions and request.max_length > shape.max_positions:
        raise _bad(
            "max_length",
            _("max_length {length} is beyond the model's {positions} positions").format(
                length=request.max_length, positions=shape.max_positions
            ),
            _("at most {positions}").format(positions=shape.max_positions),
        )
    if request.global_batch_size:
        ranks = request.per_device_train_batch_size * request.data_parallel
        if request.global_batch_size % ranks:
            raise _bad(
                "global_batch_size",
                ngettext(
                    "a global batch of {batch} cannot be made of micro-batches of {micro} on {gpus} GPU",
                    "a global batch of {batch} cannot be made of micro-batches of {micro} on {gpus} GPUs",
                    request.data_parallel,
                ).format(
                    batch=request.global_batch_size, micro=request.per_device_train_batch_size,
                    gpus=request.data_parallel,
                ),
                _("make it a multiple of {ranks}").format(ranks=ranks),
            )  # fmt: skip
        if request.gradient_accumulation_steps and request.gradient_accumulation_steps * ranks != (
            request.global_batch_size
        ):
            raise _bad(
                "gradient_accumulation_steps",
                _("accumulation {steps} times {ranks} rows is not the global batch of {batch}").format(
                    steps=request.gradient_accumulation_steps, ranks=ranks, batch=request.global_batch_size
                ),
            )
    if request.num_gpus > 1 and request.sharding == "none":
        raise _bad(
            "sharding",
            _("{gpus} GPUs need a sharding").format(gpus=request.num_gpus),
            _("one of {names}").format(names="ddp, fsdp2, zero2, zero3, pipeline"),
        )
    return request


def _attention(value: str | None) -> str | None:
    """`sdpa (flash)`, `flash_attention_2`, ...: what matters is whether the scores are made."""
    if value is None:
        return None
    low = value.lower()
    for name in ("eager", "flash", "sdpa", "flex", "xformers", "kernels"):
        if name in low:
            return "eager" if name == "eager" else "sdpa" if low.startswith("sdpa") else name
    raise _bad(
        "attn_implementation",
        _("'{value}' is not an attention implementation").format(value=value[:40]),
        _("one of {names}").format(names="sdpa, flash_attention_2, flex_attention, eager"),
    )


def _version(value: Any) -> float | None:
    """ "4.45.2" as 4.45: enough to tell the versions that hold a further copy of the logits."""
    if value is None:
        return None
    parts = str(value).split(".")
    try:
        return int(parts[0]) + (int(parts[1]) / 100 if len(parts) > 1 else 0.0)
    except ValueError:
        raise _bad("transformers", _("'{value}' is not a version").format(value=str(value)[:40])) from None


def _lengths(value: Any) -> tuple[tuple[int, int], ...]:
    """A histogram of lengths: pairs of tokens and rows."""
    if value is None:
        return ()
    pairs = list(value.items()) if isinstance(value, dict) else value
    try:
        found = tuple(sorted((int(length), int(rows)) for length, rows in pairs))
    except (TypeError, ValueError):
        found = ()
    if not found or any(length < 1 or rows < 0 for length, rows in found) or not sum(rows for _l, rows in found):
        raise _bad("length_histogram", _("'length_histogram' must be pairs of tokens and rows"))
    return found
