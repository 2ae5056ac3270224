"""The planner's counts and peaks against transformers, PEFT and autograd themselves (loads torch, one process)."""

from __future__ import annotations

import contextlib
import weakref

import orjson
import pytest

from engine.plan import memory, models, optimizers, request, shapes, state

pytestmark = pytest.mark.heavy
CATALOGUE = orjson.loads(models.CATALOGUE.read_bytes())["models"]
GRANITE_MOE = {
    "model_type": "granitemoe", "hidden_size": 1536, "num_hidden_layers": 32, "num_attention_heads": 24,
    "num_key_value_heads": 8, "intermediate_size": 512, "vocab_size": 49155, "tie_word_embeddings": True,
    "num_local_experts": 40, "num_experts_per_tok": 8,
}  # fmt: skip
FAMILIES = {entry["config"]["model_type"]: entry["config"] for entry in CATALOGUE.values()} | {
    "granitemoe": GRANITE_MOE
}
TINY = {
    "hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64,
    "intermediate_size": 1536, "vocab_size": 2048, "max_position_embeddings": 1024, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_transformers_builds_as_many_parameters(family):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = {k: 4 if k in ("num_hidden_layers", "n_layer") else v for k, v in FAMILIES[family].items()}
    fields = {k: v for k, v in config.items() if k != "model_type"}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **fields))
    assert shapes.from_config(config).parameters == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("family", "more"),
    [
        ("llama", {}),
        ("qwen3", {}),
        ("mixtral", {"num_local_experts": 8, "num_experts_per_tok": 2}),
        ("qwen3_moe", {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 768}),
    ],
)
def test_peft_trains_as_many_parameters(family, more):
    """Experts included: transformers 5 fuses them, and PEFT adapts the fused parameters of some families."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **TINY, **more))
    model = get_peft_model(model, LoraConfig(r=8, target_modules="all-linear"))
    asked = request.parse(
        {"config": {**TINY, **more, "model_type": family}, "method": "lora", "lora_r": 8, "transformers": "5"}
    )
    assert state.adapter_parameters(asked) == sum(p.numel() for p in model.parameters() if p.requires_grad)


def test_an_unknown_architecture_is_counted_in_a_process_of_its_own():
    config = {
        "model_type": "cohere", "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 4, "intermediate_size": 256, "vocab_size": 512, "tie_word_embeddings": True,
    }  # fmt: skip
    shape = models.resolve(None, config)
    # the tied embedding, two layers of four projections, three matrices and one norm, the last norm
    assert shape.parameters == 512 * 128 + 2 * (4 * 128 * 128 + 3 * 128 * 256 + 128) + 128
    assert "cohere" in shape.notes[0]


class Tracker:
    """Counts the bytes of live storages; a name for what autograd holds at a peak."""

    def __new__(cls):
        from torch.utils._python_dispatch import TorchDispatchMode
        from torch.utils._pytree import tree_leaves

        class Mode(TorchDispatchMode):
            def __init__(self):
                super().__init__()
                self.live = self.peak = 0
                self.seen = weakref.WeakSet()

            def add(self, tensor):
                storage = tensor.untyped_storage()
                if storage not in self.seen:
                    self.seen.add(storage)
                    self.live += storage.nbytes()
                    self.peak = max(self.peak, self.live)
                    weakref.finalize(storage, self.free, storage.nbytes())

            def free(self, size):
                self.live -= size

            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                out = func(*args, **(kwargs or {}))
                for leaf in tree_leaves(out):
                    if hasattr(leaf, "untyped_storage"):
                        self.add(leaf)
                return out

        return Mode()


def real_peak(config: dict, method: str, checkpointing: bool, targets: str | list[str]) -> int:
    """The largest sum of live storages in the second training step, on the CPU."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM

    settings = AutoConfig.for_model(**config)
    settings.use_cache = False
    model = AutoModelForCausalLM.from_config(settings, attn_implementation="sdpa", dtype=torch.bfloat16)
    if method == "lora":
        model = get_peft_model(model, LoraConfig(r=16, target_modules=targets, lora_dropout=0.0))
        model.enable_input_require_grads()
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], foreach=True)
    rows = torch.randint(0, TINY["vocab_size"], (2, 512))
    tracker = Tracker()
    for tensor in (*model.parameters(), *model.buffers()):
        tracker.add(tensor)
    cast = torch.autocast("cpu", torch.bfloat16) if method == "lora" else contextlib.nullcontext()
    with tracker:
        for _step in range(2):
            tracker.peak = tracker.live
            with cast:
                loss = model(input_ids=rows, labels=rows).loss
            loss.backward()
            del loss
            optimizer.step()
            optimizer.zero_grad()
    return tracker.peak


MIXTURE = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 768}


@pytest.mark.parametrize(
    ("family", "more", "method", "checkpointing", "targets", "error"),
    [
        *(
            (family, {}, method, checkpointing, targets, 0.03)
            for family in ("llama", "qwen3")
            for method, checkpointing, targets in (
                ("full", False, "all-linear"),
                ("full", True, "all-linear"),
                ("lora", False, "all-linear"),
                ("lora", True, "all-linear"),
                ("lora", True, ["q_proj", "v_proj"]),
            )
        ),
        ("qwen3_moe", MIXTURE, "full", True, "all-linear", 0.03),
        ("qwen3_moe", MIXTURE, "lora", True, "all-linear", 0.08),
    ],
)
def test_the_peak_of_a_real_step(family, more, method, checkpointing, targets, error):
    config = {**TINY, **more, "model_type": family}
    asked = request.parse(
        {
            "config": config, "method": method, "lora_r": 16, "lora_dropout": 0.0, "lora_target_modules": targets,
            "bf16_master": "bf16", "max_length": 512, "per_device_train_batch_size": 2,
            "gradient_checkpointing": checkpointing, "loss": "full", "transformers": "5",
        }
    )  # fmt: skip
    predicted = memory.memory(asked).peak.total
    assert predicted == pytest.approx(real_peak(config, method, checkpointing, targets), rel=error)


def test_8_bit_states_are_as_large_as_bitsandbytes_makes_them():
    import bitsandbytes as bnb
    import torch

    parameter = torch.nn.Parameter(torch.zeros(1024, 1024))
    optimizer = bnb.optim.AdamW8bit([parameter])
    optimizer.init_state(optimizer.param_groups[0], parameter, 0, 0)
    held = optimizer.state[parameter]
    states = sum(held[name].nbytes for name in ("state1", "state2", "absmax1", "absmax2"))
    assert optimizers.rule("adamw_bnb_8bit").full_bytes(4) * parameter.numel() == states
