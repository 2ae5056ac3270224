"""The real CPU peak that a dry run has to predict: TRL's own trainer on real tensors, counted."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from torch.distributed.fsdp import FSDPModule
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig, TrainerCallback
from trl import SFTConfig, SFTTrainer

from engine.dryrun import standins
from engine.dryrun.counter import LiveBytes
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


def load(spec: Spec, folder: Path, device: str = "cpu") -> Any:
    """The model as the engine loads it."""
    dtype = torch.float32 if spec.bf16_master == "fp32" else torch.bfloat16
    options: dict[str, Any] = {"dtype": dtype, "attn_implementation": spec.attention}
    if spec.method == "qlora":
        options["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=spec.quant == "nf4-dq",
            bnb_4bit_compute_dtype=torch.bfloat16,
            bnb_4bit_quant_storage=torch.bfloat16 if spec.sharding == "fsdp2" else torch.uint8,
        )
        options["device_map"] = {"": device}
    model = AutoModelForCausalLM.from_pretrained(folder, **options)
    model.config.use_cache = False
    return model


def trainer(spec: Spec, folder: Path, out: Path, device: str = "cpu", **more: Any) -> SFTTrainer:
    """TRL's trainer for a few steps of the spec, in bf16."""
    peft = None
    if spec.method != "full":
        peft = LoraConfig(
            r=spec.lora_r, lora_dropout=spec.lora_dropout, target_modules="all-linear", task_type="CAUSAL_LM"
        )
    rows = [{"input_ids": [7] * spec.length, "labels": [7] * spec.length} for _row in range(32 * spec.rows)]
    args = SFTConfig(
        output_dir=str(out), max_steps=4 if spec.ranks > 1 else 2, bf16=True,
        per_device_train_batch_size=spec.rows, max_length=spec.length,
        use_cpu=device == "cpu", gradient_checkpointing=spec.checkpointing, optim=spec.optim,
        report_to=[], save_strategy="no",
        gradient_accumulation_steps=spec.accumulation, dataset_kwargs={"skip_prepare_dataset": True},
        disable_tqdm=True, **more,
    )  # fmt: skip
    return SFTTrainer(
        model=load(spec, folder, device), args=args, train_dataset=Dataset.from_list(rows), peft_config=peft,
        processing_class=AutoTokenizer.from_pretrained(folder),
    )  # fmt: skip


MARK = 1_234_567  # bytes: an allocation of this size says that the second step begins


class SecondStep(TrainerCallback):
    """Leaves the mark: before it the optimizer's state appears."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **_more: Any) -> None:
        gc.collect()  # cycles that building left behind are no part of a step
        if state.global_step:
            torch.empty(MARK, dtype=torch.uint8)


def real_peak(spec: Spec, folder: Path, out: Path) -> float:
    """Bytes that the trainer's second step really takes at its peak, as torch's CPU allocator reports them.

    The allocator sees what a dispatch mode cannot: workspaces inside kernels, and sums of gradients in place. It
    does not see weights that are a view into the model's file: the tensors that were there before are added.
    """
    run = trainer(spec, folder, out)
    run.add_callback(SecondStep())
    gc.collect()  # what an earlier run left must not be freed inside the profile
    held = sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors(run.model)}.values())
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run.train()
    events = sorted(memory_events(profile), key=lambda event: event.start_time_ns)
    before = events[0].typed[1].total_allocated - events[0].typed[1].alloc_size
    sizes = [(event.typed[1].alloc_size, event.typed[1].total_allocated) for event in events]
    begin = next(i for i, (size, _total) in enumerate(sizes) if size == MARK)
    peak = max(total for size, total in sizes[begin + 1 :])
    del run, profile, events
    gc.collect()
    return float(held + peak - before)


class CudaSecondStep(TrainerCallback):
    """Begins the peak anew with the second step."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **_more: Any) -> None:
        gc.collect()
        torch.cuda.reset_peak_memory_stats()


def cuda_peak(spec: Spec, folder: Path, out: Path) -> float:
    """Bytes that the trainer's last step allocates on the GPU at its peak."""
    run = trainer(spec, folder, out, device="cuda")
    run.add_callback(CudaSecondStep())
    run.train()
    peak = float(torch.cuda.max_memory_allocated())
    del run
    gc.collect()
    return peak


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


class Steps(TrainerCallback):
    """The peak of each step but the first."""

    def __init__(self, counter: LiveBytes) -> None:
        self.counter = counter
        self.peaks: list[int] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **_more: Any) -> None:
        gc.collect()
        self.counter.forget()

    def on_step_end(self, args: Any, state: Any, control: Any, **_more: Any) -> None:
        if state.global_step > 1:
            self.peaks.append(max(total for total, _parts in self.counter.peaks.values()))


def sharded_peak(spec: Spec, folder: Path, out: Path) -> float:
    """The same on one of several real gloo ranks, by the counter: gloo's threads free where no profile looks.

    The least of several steps, because those threads let go of a buffer late now and then.
    """
    counter = LiveBytes()
    steps = Steps(counter)
    config = {"version": 2, "reshard_after_forward": spec.reshard, "auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}
    with counter, standins.applied(spec, counter, fake=False):
        run = trainer(spec, folder, out, fsdp=True, fsdp_config=config)
        for tensor in tensors(run.model):
            counter.track(tensor, "weights")
        run.add_callback(steps)
        run.train()
    assert isinstance(run.model_wrapped, FSDPModule), "the ranks were not FSDP2"
    del run
    gc.collect()
    return float(min(steps.peaks))


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
