"""The real CPU peak that a dry run has to predict: TRL's own trainer on real tensors, counted."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig
from trl import SFTConfig, SFTTrainer

from engine.dryrun.spec import Spec
from tests.support.models import make_model

TINY = {
    "model_type": "qwen3", "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 2048,
    "tie_word_embeddings": True, "max_position_embeddings": 2048,
}  # fmt: skip
SMALL = {  # 125 million parameters
    "model_type": "llama", "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12,
    "num_attention_heads": 12, "num_key_value_heads": 4, "vocab_size": 29_696, "tie_word_embeddings": False,
    "max_position_embeddings": 2048,
}  # fmt: skip


def save_model(config: dict[str, Any], folder: Path) -> Path:
    """A folder with random weights and a byte-level tokenizer."""
    make_model(folder)
    fields = dict(config)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(fields.pop("model_type"), **fields))
    model.save_pretrained(folder)
    return folder


def load(spec: Spec, folder: Path) -> Any:
    """The model as the engine loads it."""
    dtype = torch.float32 if spec.bf16_master == "fp32" else torch.bfloat16
    options: dict[str, Any] = {"dtype": dtype, "attn_implementation": spec.attention}
    if spec.method == "qlora":
        options["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=spec.quant == "nf4-dq",
            bnb_4bit_compute_dtype=torch.bfloat16,
        )
        options["device_map"] = {"": "cpu"}
    model = AutoModelForCausalLM.from_pretrained(folder, **options)
    model.config.use_cache = False
    return model


def trainer(spec: Spec, folder: Path, out: Path, **more: Any) -> SFTTrainer:
    """TRL's trainer for two steps of the spec, on the CPU in bf16."""
    peft = None
    if spec.method != "full":
        peft = LoraConfig(
            r=spec.lora_r, lora_dropout=spec.lora_dropout, target_modules="all-linear", task_type="CAUSAL_LM"
        )
    rows = [{"input_ids": [7] * spec.length, "labels": [7] * spec.length} for _row in range(8 * spec.rows)]
    args = SFTConfig(
        output_dir=str(out), max_steps=2, per_device_train_batch_size=spec.rows, max_length=spec.length, bf16=True,
        use_cpu=True, gradient_checkpointing=spec.checkpointing, optim=spec.optim, report_to=[], save_strategy="no",
        gradient_accumulation_steps=spec.accumulation, dataset_kwargs={"skip_prepare_dataset": True},
        disable_tqdm=True, **more,
    )  # fmt: skip
    return SFTTrainer(
        model=load(spec, folder), args=args, train_dataset=Dataset.from_list(rows), peft_config=peft,
        processing_class=AutoTokenizer.from_pretrained(folder),
    )  # fmt: skip


def real_peak(spec: Spec, folder: Path, out: Path) -> float:
    """Bytes that the trainer's two steps really take at their peak, as torch's CPU allocator reports them.

    The allocator sees what a dispatch mode cannot: workspaces inside kernels, and sums of gradients in place.
    """
    run = trainer(spec, folder, out)
    held = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors(run.model)}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run.train()
    events = sorted(memory_events(profile), key=lambda event: event.start_time_ns)
    totals = [event.typed[1].total_allocated for event in events]
    peak = max(totals) - (totals[0] - events[0].typed[1].alloc_size)  # earlier profiles leave their count behind
    del run
    gc.collect()
    return float(sum(held.values()) + peak)


def memory_events(profile: Any) -> list[Any]:
    """The allocator's events."""
    kind = torch._C._profiler._EventType.Allocation
    found, queue = [], list(profile.profiler.kineto_results.experimental_event_tree())
    while queue:
        event = queue.pop()
        queue.extend(event.children)
        if event.typed[0] == kind:
            found.append(event)
    return found


def tensors(model: Any) -> list[torch.Tensor]:
    """All that the model holds before its first step."""
    return [*model.parameters(), *model.buffers(), *scales(model)]


def scales(model: Any) -> list[torch.Tensor]:
    """The scales of 4-bit matrices, which are neither parameters nor buffers."""
    states = [p.quant_state for p in model.parameters() if getattr(p, "quant_state", None) is not None]
    found = []
    for state in states:
        found += [state.absmax, state.code]
        if state.nested:
            found += [state.offset, state.state2.absmax, state.state2.code]
    return found
