"""The trainer's optimizers by its names for them, as they run on a GPU."""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
import transformers

from engine.dryrun.build import Unsupported
from engine.dryrun.counter import LiveBytes
from engine.dryrun.spec import Spec

RATE = 1e-5


def groups(model: Any) -> list[dict[str, Any]]:
    """The trainer's parameter groups: with weight decay, and (norms, biases) without."""
    decaying = set(transformers.Trainer.get_decay_parameter_names(None, model))  # type: ignore[arg-type]
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    kinds = ([p for n, p in named if n in decaying], [p for n, p in named if n not in decaying])
    return [{"params": kind} for kind in kinds if kind]


def make(spec: Spec, model: Any, counter: LiveBytes) -> torch.optim.Optimizer:
    """The optimizer of a step.

    Raises:
        Unsupported: one that cannot run without a GPU.
    """
    name, parameters = spec.optim, groups(model)
    # torch takes the foreach form on CUDA by itself; these tensors only say that they are on the CPU
    foreach: dict[str, Any] = {"foreach": True} if spec.target == "cuda" else {}
    if name == "adamw_torch_fused":
        return torch.optim.AdamW(parameters, lr=RATE, fused=True)
    if name == "adamw_torch":
        return torch.optim.AdamW(parameters, lr=RATE, **foreach)
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=RATE, **foreach)
    if name == "rmsprop":
        return torch.optim.RMSprop(parameters, lr=RATE, **foreach)
    if name == "adafactor":
        from transformers.optimization import Adafactor

        return Adafactor(parameters, lr=RATE, scale_parameter=False, relative_step=False)
    if name in ("adamw_bnb_8bit", "paged_adamw_8bit", "paged_adamw_32bit"):
        return _bitsandbytes(name, parameters, counter)
    raise Unsupported(f"the dry run cannot run the optimizer {name}")


def _bitsandbytes(name: str, parameters: list[dict[str, Any]], counter: LiveBytes) -> torch.optim.Optimizer:
    import bitsandbytes as bnb

    kind = bnb.optim.AdamW8bit if name.endswith("8bit") else bnb.optim.AdamW
    # its code books are computed value by value, which fake tensors do not have
    with mock.patch("bitsandbytes.functional.create_dynamic_map", lambda *_args, **_options: torch.empty(256)):
        optimizer: Any = kind(parameters, lr=RATE)
    if name.startswith("paged"):
        # managed memory is not PyTorch's: the state is there and is not counted
        make_buffer = optimizer.get_state_buffer

        def elsewhere(*args: Any, **options: Any) -> Any:
            with counter.silent():
                return make_buffer(*args, **options)

        optimizer.get_state_buffer = elsewhere
    found: torch.optim.Optimizer = optimizer
    return found
