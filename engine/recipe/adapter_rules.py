"""Contradictions among the keys of LoRA and of preference training."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from engine.findings import Finding
from engine.recipe.model import Recipe
from engine.text import _

BASE_CHANGING = ("pissa", "olora", "corda", "loftq", "eva", "lora_ga")  # initializations computed from 16-bit weights
F_DIVERGENCE_LOSSES = {"sigmoid", "sigmoid_norm", "hinge", "ipo", "exo_pair", "robust", "discopop", "sft"}


def _targets(recipe: Recipe) -> Iterator[Finding]:
    if recipe.method == "full":
        return
    get, targets = recipe.get, recipe.get("lora_target_modules")
    listed = targets if isinstance(targets, list) else [targets]
    if "lm_head" in listed:
        detail = _("TRL computes the loss from lm_head's own weight: an adapter on it would never be trained")
        yield from recipe.conflict(("lora_target_modules",), detail, _("remove lm_head from lora_target_modules"))
    both = sorted({str(name) for name in listed} & {str(name) for name in get("lora_modules_to_save") or []})
    if both:
        detail = _("{names}: trained whole and with an adapter at once").format(names=", ".join(both[:5]))
        keys = ("lora_target_modules", "lora_modules_to_save")
        yield from recipe.conflict(keys, detail, _("keep each module in one of the lists"))
    for key in ("layers_to_transform", "layers_pattern"):
        if isinstance(targets, str) and get(key) is not None:
            detail = _("{key} needs a list of modules; lora_target_modules is '{targets}'").format(
                key=key, targets=targets[:60]
            )
            yield from recipe.conflict((key, "lora_target_modules"), detail, _("list the modules"))
    if isinstance(targets, str) and targets != "all-linear":
        try:
            re.compile(targets)
        except (re.error, RecursionError, OverflowError) as error:
            detail = _("lora_target_modules is not a regular expression: {reason}").format(reason=error)
            yield from recipe.conflict(("lora_target_modules",), detail, _("list module names, or use all-linear"))
    if get("layers_pattern") and get("layers_to_transform") is None:
        detail = _("layers_pattern needs layers_to_transform")
        yield from recipe.conflict(("layers_pattern", "layers_to_transform"), detail, _("give both or none"))
    if get("lora_target_parameters"):
        if get("lora_dropout"):
            detail = _("PEFT allows no dropout on lora_target_parameters")
            yield from recipe.conflict(("lora_target_parameters", "lora_dropout"), detail, _("use lora_dropout: 0"))
        if get("use_dora"):
            detail = _("PEFT has no DoRA for lora_target_parameters")
            yield from recipe.conflict(("lora_target_parameters", "use_dora"), detail, _("delete use_dora"))


def _variants(recipe: Recipe) -> Iterator[Finding]:
    if recipe.method == "full":
        return
    get, start = recipe.get, recipe.get("init_lora_weights")
    if get("use_dora") and get("megatron_config"):
        detail = _("PEFT has no DoRA on Megatron layers")
        yield from recipe.conflict(("use_dora", "megatron_config"), detail, _("keep one of them"))
    if get("lora_bias") and get("use_dora"):
        detail = _("PEFT has no lora_bias with DoRA")
        yield from recipe.conflict(("lora_bias", "use_dora"), detail, _("keep one of them"))
    if get("lora_bias") and not isinstance(start, bool):
        detail = _("lora_bias needs init_lora_weights true or false")
        yield from recipe.conflict(("lora_bias", "init_lora_weights"), detail, _("delete init_lora_weights"))
    if start == "loftq" and not get("loftq_config"):
        detail = _("init_lora_weights loftq needs loftq_config")
        yield from recipe.conflict(("init_lora_weights", "loftq_config"), detail, _("give loftq_config"))
    for name in ("loftq", "eva", "corda", "lora_ga"):
        key = f"{name}_config"
        if get(key) and start != name:
            detail = _("{key} is ignored unless init_lora_weights is {name}").format(key=key, name=name)
            fix = _("set init_lora_weights: {name}, or delete it").format(name=name)
            yield from recipe.conflict((key, "init_lora_weights"), detail, fix)
    quantized = get("load_in_4bit") or get("load_in_8bit")
    if quantized and isinstance(start, str) and start.startswith(BASE_CHANGING):
        detail = _("init_lora_weights {start} reads 16-bit weights; this base is quantized").format(start=start)
        keys = ("init_lora_weights", "method", "load_in_4bit", "load_in_8bit")
        yield from recipe.conflict(keys, detail, _("use method: lora, or delete init_lora_weights"))
    if get("use_qalora"):
        detail = _("use_qalora works on GPTQ bases only; bases here are 16-bit or bitsandbytes")
        yield from recipe.conflict(("use_qalora",), detail, _("delete it"))


def _preference(recipe: Recipe) -> Iterator[Finding]:
    if recipe.task != "dpo":
        return
    get, losses = recipe.get, recipe.get("loss_type") or []
    weights = get("loss_weights")
    if weights is not None and len(weights) != len(losses):
        detail = _("loss_weights has {weights} values for {losses} loss types").format(
            weights=len(weights), losses=len(losses)
        )
        yield from recipe.conflict(("loss_weights", "loss_type"), detail, _("give one weight for each loss"))
    if "exo_pair" in losses and not get("label_smoothing"):
        detail = _("the loss exo_pair needs label_smoothing above 0")
        yield from recipe.conflict(("loss_type", "label_smoothing"), detail, _("use label_smoothing: 0.001"))
    if get("use_weighting") and {"aot", "aot_unpaired"} & set(losses):
        detail = _("use_weighting cannot weigh the losses aot and aot_unpaired: they sort the samples")
        yield from recipe.conflict(("use_weighting", "loss_type"), detail, _("keep one of them"))
    if get("f_divergence_type") != "reverse_kl" and not set(losses) <= F_DIVERGENCE_LOSSES:
        detail = _("f_divergence_type {kind} does not exist for this loss_type").format(kind=get("f_divergence_type"))
        fix = _("use reverse_kl, or one of: {losses}").format(losses=", ".join(sorted(F_DIVERGENCE_LOSSES)))
        yield from recipe.conflict(("f_divergence_type", "loss_type"), detail, fix)
    if get("sync_ref_model") and get("precompute_ref_log_probs"):
        detail = _("sync_ref_model changes the reference whose values precompute_ref_log_probs keeps")
        yield from recipe.conflict(("sync_ref_model", "precompute_ref_log_probs"), detail, _("keep one of them"))
    if get("sync_ref_model") and recipe.method != "full":
        detail = _("sync_ref_model needs a reference model of its own; with an adapter there is none")
        yield from recipe.conflict(("sync_ref_model", "method"), detail, _("use method: full, or delete it"))


RULES: tuple[Callable[[Recipe], Iterator[Finding]], ...] = (_targets, _variants, _preference)
