"""After everything is built: is it what the recipe asked for? A setting that silently did nothing stops the run."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback

from engine.errors import FtuiError
from engine.text import _
from engine.train import flops, fp8, sharding
from engine.train.job import Job
from engine.train.model import device, wants_4bit


def verify(job: Job, trainer: Any) -> None:
    """Compare the built trainer with the recipe.

    Raises:
        FtuiError: they differ; the error names the setting, what was asked and what came out.
    """
    _compare(_differences(job, trainer))


def _compare(differences: list[tuple[str, Any, Any]]) -> None:
    for setting, asked, got in differences:
        if asked != got:
            raise FtuiError(
                _("{setting} did not take effect: asked for {asked}, got {got}").format(
                    setting=setting, asked=asked, got=got
                ),
                where=setting,
                fix=_("check the versions of the training environment with `ftui doctor`"),
                kind="not_as_asked",
            )


def _differences(job: Job, trainer: Any) -> list[tuple[str, Any, Any]]:
    """Triples of setting, what was asked, and what is there."""
    args, model = trainer.args, trainer.model
    world = job.rank.world_size
    found = [
        ("world size", world, args.world_size),
        ("sharding", distributed_type(job), trainer.accelerator.distributed_type.name),
    ]
    if distributed_type(job) not in ("FSDP", "DEEPSPEED"):  # those place the weights when the training begins
        found.append(("device", device(job).type, next(model.parameters()).device.type))
    if batch := job.get("global_batch_size"):
        per_device = args.per_device_train_batch_size
        found.append(("global_batch_size", int(batch), per_device * args.gradient_accumulation_steps * world))
    if wants_4bit(job):
        found.append(("load_in_4bit", True, _has_4bit(model)))
    if job.get("fp8", False):
        found.append(("fp8", True, fp8.count(model) > 0))
    if wanted_attention := job.get("attn_implementation"):
        found.append(("attn_implementation", wanted_attention, attention(model)))
    found.append(("loss path", "chunked", loss_path(model)))
    trainable = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    if job.method == "full":
        frozen = sum(1 for _name, parameter in model.named_parameters() if not parameter.requires_grad)
        found.append(("method", "full", "full" if trainable and not frozen else f"{frozen} frozen"))
    else:
        adapters = [name for name in trainable if "lora_" in name]
        found.append(("method", True, bool(adapters)))
        # modules_to_save and trained tokens are the only other weights that an adapter may train
        others = [
            n for n in trainable if "lora_" not in n and "modules_to_save" not in n and "trainable_tokens" not in n
        ]
        if job.get("bias", "none") == "none":
            found.append(("method", [], others[:3]))
    wanted = getattr(torch, str(job.get("dtype", "float32")), None)
    own_master = distributed_type(job) == "DEEPSPEED" and sharding.mixed_precision(job.recipe) != "no"
    if isinstance(wanted, torch.dtype) and not sharding.quantized(job.recipe) and not own_master:
        # The base's weights: PEFT keeps an adapter in float32 whatever the base is.
        base = [
            p for p in model.parameters() if p.is_floating_point() and (job.method == "full" or not p.requires_grad)
        ]
        found.append(("dtype", [str(wanted)], sorted({str(parameter.dtype) for parameter in base})))
    return found


def distributed_type(job: Job) -> str:
    """What accelerate calls the sharding."""
    wanted = sharding.kind(job.recipe)
    if "deepspeed" in sharding.trainer_options(job.recipe, job.rank.world_size):
        return "DEEPSPEED"
    if job.rank.world_size == 1:
        return "NO"
    if wanted == "fsdp2":
        return "FSDP"
    return "MULTI_CPU" if device(job).type == "cpu" else "MULTI_GPU"


class AtStart(TrainerCallback):
    """What only the prepared model can tell: how it is really sharded, and which optimizer will step."""

    def __init__(self, job: Job, trainer: Any) -> None:
        self.job = job
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        _compare(self._found())

    def _found(self) -> list[tuple[str, Any, Any]]:
        job, trainer = self.job, self.trainer
        model, wanted = trainer.model_wrapped, distributed_type(job)
        found: list[tuple[str, Any, Any]] = []
        if wanted == "FSDP":
            from torch.distributed.fsdp import FSDPModule

            trained = [p for p in trainer.model.parameters() if p.requires_grad]
            found.append(("FSDP version", 2, 2 if isinstance(model, FSDPModule) else 1))
            found.append(("sharding", True, all(isinstance(p, DTensor) for p in trained)))
            if job.method == "full" and job.get("bf16_master"):
                master = {"fp32": "torch.float32", "bf16": "torch.bfloat16"}[job.recipe["bf16_master"]]
                found.append(("bf16_master", [master], sorted({str(p.dtype) for p in trained})))
        elif wanted == "DEEPSPEED":
            stage = sharding.deepspeed_config(job.recipe)["zero_optimization"]["stage"]
            found.append(("ZeRO stage", stage, model.zero_optimization_stage()))
        elif wanted.startswith("MULTI"):
            found.append(("sharding", "DistributedDataParallel", type(model).__name__))
        if sharding.kind(job.recipe) == "pipeline":
            places = set(getattr(trainer.model, "hf_device_map", {}).values())
            found.append(("pipeline over several GPUs", True, len(places) > 1))
        found += _optimizer(str(job.get("optim", "")), trainer.optimizer)
        if job.get("torch_compile", False):
            found.append(("torch_compile", True, hasattr(model, "_orig_mod") or hasattr(model, "_compiled_call_impl")))
        return found


def _optimizer(name: str, optimizer: Any) -> list[tuple[str, Any, Any]]:
    """Whether the optimizer is of the kind that the recipe names, where another would take other memory."""
    while hasattr(optimizer, "optimizer"):  # as accelerate and DeepSpeed wrap it
        optimizer = optimizer.optimizer
    kind = type(optimizer)
    if name == "muon":
        return [("optim", "MuonWithAdamW", kind.__name__)]
    if name == "adafactor":
        return [("optim", "Adafactor", kind.__name__)]
    if "paged" in name or name in ("adamw_8bit", "adamw_bnb_8bit", "lion_8bit"):
        paged = bool(getattr(optimizer, "is_paged", False))
        ours = kind.__module__.startswith("bitsandbytes")
        return [("optim", (True, "paged" in name), (ours, paged))]
    return []


def _has_4bit(model: Any) -> bool:
    """Whether some weight is really stored in 4 bits, not only said to be."""
    return any(parameter.__class__.__name__ == "Params4bit" for parameter in model.parameters())


def counts(model: Any) -> tuple[int, int]:
    """Trained and all weights."""
    trained = total = 0
    for parameter, count in flops.weights(model):
        total += count
        trained += count if parameter.requires_grad else 0
    return trained, total


def attention(model: Any) -> str | None:
    """The attention that the model computes with."""
    return getattr(model.config.get_text_config(), "_attn_implementation", None)


def loss_path(model: Any) -> str:
    """`chunked` where TRL computes the loss in tiles from the head's weight, `full` where all scores are held."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    return "chunked" if "forward" in vars(base) else "full"
