"""An adapter as PEFT saves it: its config, and what each of its tensors is."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.files import read_json
from engine.merge.report import Report
from engine.merge.tensors import FLOATS, Ref, read_file
from engine.text import _

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
_PREFIX = "base_model.model."
_LORA = re.compile(
    r"(?P<module>.+?)\.(?P<part>lora_A|lora_B|lora_embedding_A|lora_embedding_B|lora_magnitude_vector)"
    r"(?:\.(?!(?:weight|bias)\Z)[^.]+)?(?:\.(?P<kind>weight|bias))?\Z"
)
_TOKENS = re.compile(r"(?P<module>.+)\.token_adapter\.trainable_tokens_delta(?:\.[^.]+)?\Z")
# Fields that change what a LoRA layer computes in a way that is not carried into plain weights here.
_REFUSED = (
    "megatron_config", "layer_replication", "use_qalora", "velora_config", "alora_invocation_tokens",
    "monteclora_config", "arrow_config", "kasa_config", "use_bdlora",
)  # fmt: skip
# With these the base itself was changed when training began, and the adapter fits the changed one only.
_CHANGE_BASE = ("pissa", "corda", "olora", "lora_ga", "loftq")


@dataclass
class Lora:
    """The LoRA tensors of one layer. `depth` counts PEFT's wrappers around it (several parameters of one module)."""

    module: str
    depth: int
    embedding: bool = False
    a: Ref | None = None
    b: Ref | None = None
    bias: Ref | None = None
    magnitude: Ref | None = None
    keys: list[str] = field(default_factory=list)


@dataclass
class Adapter:
    """What was read. `full` are whole tensors that replace the base's, `tokens` rows of an embedding."""

    folder: Path
    config: dict[str, Any]
    loras: list[Lora] = field(default_factory=list)
    full: dict[str, tuple[str, Ref]] = field(default_factory=dict)  # parameter: (key in the file, tensor)
    originals: dict[str, tuple[str, Ref]] = field(default_factory=dict)  # what `full` was before the training
    tokens: dict[str, tuple[str, Ref]] = field(default_factory=dict)  # module: (key in the file, rows)

    def rank(self, name: str) -> int:
        """The rank that the config gives the module (or parameter) `name`."""
        return int(_by_pattern(self.config.get("rank_pattern"), name, self.config.get("r") or 8))

    def scale(self, name: str) -> float:
        """alpha / r, or alpha / sqrt(r) with rsLoRA, as PEFT computes it."""
        default = self.config.get("lora_alpha")
        alpha: float = _by_pattern(self.config.get("alpha_pattern"), name, 8 if default is None else default)
        r = self.rank(name)
        return alpha / math.sqrt(r) if self.config.get("use_rslora") else alpha / r

    def token_indices(self, module: str) -> list[int] | None:
        """Which rows `tokens` replace, or None when the config does not say."""
        value = self.config.get("trainable_token_indices")
        if isinstance(value, dict):
            value = next((v for k, v in value.items() if module == k or module.endswith(f".{k}")), None)
        good = isinstance(value, list) and all(isinstance(n, int) and not isinstance(n, bool) for n in value)
        return value if good else None


def read(folder: Path, report: Report) -> Adapter | None:
    """Read an adapter's folder; None, with the reasons reported, when nothing can be made of it."""
    config = read_json(folder / CONFIG)
    if not isinstance(config, dict):
        report.add("adapter_config", "error", _("it is missing or not a JSON object"), CONFIG)
        return None
    _check_config(config, report)
    if not (folder / WEIGHTS).exists():
        if (folder / "adapter_model.bin").exists():
            detail = _("its weights are a pickle (adapter_model.bin); only safetensors are read")
            report.add("unsupported_adapter", "error", detail, fix=_("save it again with safe_serialization=True"))
        else:
            report.add("missing_shard", "error", _("the adapter has no weights"), WEIGHTS)
        return None
    tensors = read_file(folder / WEIGHTS, report)
    if tensors is None or report.broken:
        return None
    adapter = Adapter(folder, config)
    layers: dict[tuple[str, int], Lora] = {}
    for key, ref in tensors.items():
        _sort_in(key, ref, adapter, layers, report)
    adapter.full = adapter.originals | adapter.full
    adapter.loras = list(layers.values())
    for lora in adapter.loras:
        _check_pair(lora, config, report)
    if not tensors:
        report.add("lora_pair_incomplete", "error", _("the adapter holds no tensors"), WEIGHTS)
    return adapter


def _sort_in(key: str, ref: Ref, adapter: Adapter, layers: dict[tuple[str, int], Lora], report: Report) -> None:
    if ref.dtype not in FLOATS:
        detail = _("its type {dtype} is not one that adapters have").format(dtype=ref.dtype)
        report.add("unsupported_adapter", "error", detail, key)
        return
    name = key.removeprefix(_PREFIX)
    if match := _TOKENS.match(name):
        adapter.tokens[match["module"]] = (key, ref)
        return
    match = _LORA.match(name)
    if match is None:
        _whole(key, name, ref, adapter, report)
        return
    depth = match["module"].count(".base_layer")
    module = match["module"].replace(".base_layer", "")
    lora = layers.setdefault((module, depth), Lora(module, depth))
    lora.keys.append(key)
    part = match["part"]
    lora.embedding |= "embedding" in part
    if part.endswith("_A"):
        lora.a = ref
    elif part.endswith("_B") and match["kind"] == "bias":
        lora.bias = ref
    elif part.endswith("_B"):
        lora.b = ref
    else:
        lora.magnitude = ref


def _whole(key: str, name: str, ref: Ref, adapter: Adapter, report: Report) -> None:
    """A tensor that replaces the base's. Where a vocabulary grew, PEFT saves the trained copy twice."""
    if ".original_module." in name:
        adapter.originals[name.replace(".original_module.", ".")] = (key, ref)
        return
    plain = re.sub(r"\.modules_to_save(?:\.default)?(?=\.)", "", name).replace(".base_layer.", ".")
    _key, other = adapter.full.setdefault(plain, (key, ref))
    if other != ref and ((other.dtype, other.shape) != (ref.dtype, ref.shape) or other.read() != ref.read()):
        report.add("adapter_config", "error", _("two tensors stand for {name}").format(name=plain), key)


def _check_pair(lora: Lora, config: dict[str, Any], report: Report) -> None:
    for part, ref in (("lora_A", lora.a), ("lora_B", lora.b)):
        if ref is None:
            detail = _("{module} has no {part}").format(module=lora.module, part=part)
            report.add("lora_pair_incomplete", "error", detail, lora.module)
        elif len(ref.shape) != 2 or not ref.size:
            detail = _("{part} has the shape {shape}: it was saved without being gathered").format(
                part=part, shape=list(ref.shape)[:8]
            )
            report.add("shape_mismatch", "error", detail, lora.module)
    if config.get("use_dora") and lora.magnitude is None:
        detail = _("use_dora is on and {module} has no lora_magnitude_vector").format(module=lora.module)
        report.add("lora_pair_incomplete", "error", detail, lora.module)
    elif lora.magnitude is not None and not config.get("use_dora"):
        detail = _("{module} has a lora_magnitude_vector and use_dora is off").format(module=lora.module)
        report.add("adapter_config", "error", detail, lora.module)


def _check_config(config: dict[str, Any], report: Report) -> None:
    kind = config.get("peft_type")
    if kind != "LORA":
        detail = _("adapters of type {kind} are not merged, only LORA").format(kind=str(kind)[:40])
        report.add("unsupported_adapter", "error", detail, "peft_type")
    for name in _REFUSED:
        if config.get(name):
            report.add("unsupported_adapter", "error", _("it was trained with {name}").format(name=name), name)
    start = config.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_CHANGE_BASE):
        detail = _("it was begun with {name}, which changed the base").format(name=start[:40])
        fix = _("convert it with PEFT (path_initial_model_for_weight_conversion), then merge")
        report.add("unsupported_adapter", "error", detail, "init_lora_weights", fix=fix)
    for name, good in _TYPES.items():
        value = config.get(name)
        if value is not None and not good(value):
            report.add("adapter_config", "error", _("{name} has no sensible value").format(name=name), name)


def _positive(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _pattern(value: Any, good: Callable[[Any], bool]) -> bool:
    """A pattern is a regular expression to PEFT; one that could run away on a name is none that anyone writes."""
    if not isinstance(value, dict) or not all(good(v) for v in value.values()):
        return False
    for key in value:
        if len(key) > 1000 or re.search(r"[+*}]\)*[+*{]", key):
            return False
        try:
            re.compile(key)
        except (re.error, RecursionError, OverflowError):
            return False
    return True


def _names(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(name, str) for name in value))


_TYPES: dict[str, Callable[[Any], bool]] = {
    "r": _positive,
    "lora_alpha": _number,
    "rank_pattern": lambda value: _pattern(value, _positive),
    "alpha_pattern": lambda value: _pattern(value, _number),
    "target_modules": _names,
    "target_parameters": _names,
    "modules_to_save": _names,
    "base_model_name_or_path": lambda value: isinstance(value, str),
}


def _by_pattern(pattern: dict[str, Any] | None, name: str, default: Any) -> Any:
    """PEFT's rule: the first key that matches the end of the name, at a dot."""
    for key, value in (pattern or {}).items():
        if re.match(rf"(.*\.)?({key})$", name):
            return value
    return default
