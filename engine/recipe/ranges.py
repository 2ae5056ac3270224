"""The range of every numeric key, in the notation of intervals; a test asks that none is forgotten."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

_SEED = "[0, 4294967295]"  # numpy's generators take 32 bits

RANGES: dict[str, str] = {
    # length of the run and batches
    "num_train_epochs": "(0, 10000]",
    "max_steps": "[-1, 1e9]",
    "per_device_train_batch_size": "[1, 65536]",
    "per_device_eval_batch_size": "[1, 65536]",
    "gradient_accumulation_steps": "[1, 1000000]",
    "global_batch_size": "[1, 1e9]",
    "eval_accumulation_steps": "[1, 1e9]",
    # learning rate and optimizer
    "learning_rate": "(0, 1]",
    "warmup_steps": "[0, 1e9]",
    "warmup_ratio": "[0, 1]",
    "weight_decay": "[0, 1]",
    "adam_beta1": "[0, 1)",
    "adam_beta2": "[0, 1)",
    "adam_epsilon": "(0, 1]",
    "max_grad_norm": "[0, inf)",
    "label_smoothing_factor": "[0, 1)",
    "neftune_noise_alpha": "(0, inf)",
    "router_aux_loss_coef": "[0, inf)",
    # logging, evaluation, saving
    "logging_steps": "(0, 1e9]",
    "eval_steps": "(0, 1e9]",
    "save_steps": "(0, 1e9]",
    "eval_delay": "[0, 1e9]",
    "save_total_limit": "[1, 1e6]",
    "torch_empty_cache_steps": "[1, 1e9]",
    "test_size": "[0, 1)",
    "eval_samples": "[0, 64]",
    "eval_max_new_tokens": "[1, 100000]",
    # data
    "max_length": "[2, 1e8]",
    "pad_to_multiple_of": "[1, 65536]",
    "dataset_num_proc": "[1, 4096]",
    "dataloader_num_workers": "[0, 4096]",
    "dataloader_prefetch_factor": "[1, 65536]",
    "seed": _SEED,
    "data_seed": _SEED,
    # machines
    "num_gpus": "[0, 1024]",
    "num_machines": "[1, 1024]",
    "ddp_timeout": "[1, 1e7]",
    "ddp_bucket_cap_mb": "[1, 1e6]",
    "local_rank": "[-1, 1024]",
    # supervision
    "loss_spike_factor": "(1, 1000]",
    "eval_rise_patience": "[1, 1000]",
    "max_rollbacks": "[0, 100]",
    "hang_after_s": "[0, 1e6]",
    "hang_factor": "[1, 100000]",
    # LoRA
    "lora_r": "[1, 65536]",
    "lora_alpha": "[1, 1e6]",
    "lora_dropout": "[0, 1)",
    "qalora_group_size": "[1, 65536]",
    "layers_to_transform": "[0, 1e6]",
    "trainable_token_indices": "[0, 1e9]",
    "alora_invocation_tokens": "[0, 1e9]",
    # preference training
    "beta": "[0, inf)",
    "ld_alpha": "[0, 1]",
    "label_smoothing": "[0, 0.5]",
    "loss_weights": "[0, inf)",
    "discopop_tau": "(0, inf)",
    "f_alpha_divergence_coef": "(-inf, inf)",
    "ref_model_mixup_alpha": "[0, 1]",
    "ref_model_sync_steps": "[1, 1e9]",
    "precompute_ref_batch_size": "[1, 65536]",
}
# The values of these mappings.
VALUE_RANGES = {"rank_pattern": "[1, 65536]", "alpha_pattern": "(0, 1e6]"}
# Below 1 a share of the run, from 1 on a number of steps.
STEPS = ("warmup_steps", "logging_steps", "eval_steps", "save_steps")


@dataclass(frozen=True)
class Interval:
    """A range of numbers with open or closed ends."""

    text: str
    low: float
    high: float
    low_open: bool
    high_open: bool

    def __contains__(self, value: float) -> bool:
        if not math.isfinite(value):
            return False
        above = value > self.low if self.low_open else value >= self.low
        below = value < self.high if self.high_open else value <= self.high
        return above and below

    def describe(self) -> str:
        """The range in signs that need no translation: `> 0 and <= 1`."""
        parts = []
        if math.isfinite(self.low):
            parts.append(f"{'>' if self.low_open else '>='} {self.low:.10g}")
        if math.isfinite(self.high):
            parts.append(f"{'<' if self.high_open else '<='} {self.high:.10g}")
        return ", ".join(parts) or "finite"


@cache
def interval(text: str) -> Interval:
    """Read `(0, 1]`."""
    low, high = (float(part) for part in text[1:-1].split(","))
    return Interval(text, low, high, text[0] == "(", text[-1] == ")")
