"""The closed form beside the dry run for models, methods and shardings: one JSON line each.

    OMP_NUM_THREADS=1 python -m tests.bench.bench_dryrun [WORD]

Each dry run is the real code of transformers, PEFT, TRL, bitsandbytes and FSDP2 on fake tensors (engine/dryrun), from
two depths; WORD picks the lines whose name contains it.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from typing import Any

from engine.plan import dryrun, models, request
from engine.plan.plan import plan

DEFAULTS = {"transformers": "5", "max_length": 2048, "optim": "adamw_torch_fused", "gpu": "B200"}
LLAMA, BIG, QWEN = "meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-70B", "Qwen/Qwen3-8B"
OPEN = {"gradient_checkpointing": False}
SHARDED = {"sharding": "fsdp2", "max_length": 8192}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("Llama 8B full", {"model": LLAMA, "method": "full"}),
    ("Llama 8B full, bf16, foreach", {"model": LLAMA, "method": "full", "bf16_master": "bf16", "optim": "adamw_torch"}),
    ("Llama 8B full, open, full logits", {"model": LLAMA, "method": "full", "loss": "full", **OPEN}),
    ("Llama 8B full, accumulation", {"model": LLAMA, "method": "full", "gradient_accumulation_steps": 4}),
    ("Llama 8B LoRA", {"model": LLAMA, "method": "lora", "per_device_train_batch_size": 4}),
    ("Llama 8B LoRA, open", {"model": LLAMA, "method": "lora", **OPEN}),
    ("Llama 8B LoRA, open, eager", {"model": LLAMA, "method": "lora", "attn_implementation": "eager", **OPEN}),
    ("Llama 8B DoRA", {"model": LLAMA, "method": "lora", "use_dora": True}),
    ("Llama 8B QLoRA, k-bit", {"model": LLAMA, "method": "qlora", "kbit_prepare": True}),
    ("Llama 8B QLoRA, open", {"model": LLAMA, "method": "qlora", **OPEN}),
    ("Llama 8B LoRA, DDP 2", {"model": LLAMA, "method": "lora", "num_gpus": 2, "sharding": "ddp"}),
    ("Qwen3 8B full, 8-bit states", {"model": QWEN, "method": "full", "optim": "adamw_bnb_8bit"}),
    ("Qwen3 8B QLoRA", {"model": QWEN, "method": "qlora"}),
    ("Mistral 7B LoRA, packed", {"model": "mistralai/Mistral-7B-v0.1", "method": "lora", "packing": True}),
    ("Gemma 2 9B LoRA, open", {"model": "google/gemma-2-9b", "method": "lora", **OPEN}),
    ("Gemma 3 4B full", {"model": "google/gemma-3-4b-pt", "method": "full"}),
    ("Phi-4 LoRA, open", {"model": "microsoft/phi-4", "method": "lora", **OPEN}),
    ("Falcon 7B LoRA", {"model": "tiiuae/falcon-7b", "method": "lora"}),
    ("Mixtral LoRA", {"model": "mistralai/Mixtral-8x7B-v0.1", "method": "lora", "lora_dropout": 0}),
    ("Qwen3 30B-A3B LoRA", {"model": "Qwen/Qwen3-30B-A3B", "method": "lora", "lora_dropout": 0}),
    ("gpt-oss 20B LoRA", {"model": "openai/gpt-oss-20b", "method": "lora"}),
    ("Llama 70B full, FSDP2 8", {"model": BIG, "method": "full", "num_gpus": 8, **SHARDED}),
    ("Llama 70B LoRA, FSDP2 8", {"model": BIG, "method": "lora", "num_gpus": 8, **SHARDED}),
    ("Llama 70B QLoRA, FSDP2 2", {"model": BIG, "method": "qlora", "num_gpus": 2, **SHARDED, "max_length": 4096}),
    ("Llama 8B full, FSDP2 2, open", {"model": LLAMA, "method": "full", "num_gpus": 2, "sharding": "fsdp2", **OPEN}),
]


def main() -> None:
    """Compare."""
    warnings.simplefilter("ignore")
    from engine.dryrun import __main__ as child
    from engine.dryrun import step

    child.say = lambda *_args, **_fields: None  # type: ignore[assignment]
    for name, values in CASES:
        if len(sys.argv) > 1 and sys.argv[1] not in name:
            continue
        fields = DEFAULTS | values | ({"lora_dtype": "bf16"} if values["method"] == "qlora" else {})
        closed = plan(request.parse(fields), advise=False)
        spec, _notes = dryrun.specification(closed.request, models.config(closed.request.model))
        started = time.monotonic()
        phases = {k: sum(parts.values()) for k, parts in child.measure(spec, step.measure)["phases"].items()}
        peak = max(phases, key=lambda phase: phases[phase])
        print(
            json.dumps(
                {
                    "case": name,
                    "closed_gb": round(closed.memory.peak.total / 1e9, 2),
                    "dry_gb": round(phases[peak] / 1e9, 2),
                    "difference": round(closed.memory.peak.total / phases[peak] - 1, 4),
                    "phase": peak,
                    "seconds": round(time.monotonic() - started, 1),
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
