"""Contradictions inside a recipe, found before a GPU is held.

Each rule states when two or more keys cannot both be meant. A rule only speaks when the recipe itself gives one of
its keys: defaults never contradict the user. The sources are the field's own checks (transformers'
`TrainingArguments.__post_init__` and `Trainer._validate_args`, TRL's trainers, PEFT's `LoraConfig`) and what this
product promises (resumable checkpoints, one global batch, no silent change of the setting).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from engine.findings import Finding
from engine.recipe import adapter_rules, schedule_rules
from engine.recipe.keys import table
from engine.recipe.model import Recipe
from engine.text import _

Rule = Callable[[Recipe], Iterator[Finding]]


def contradictions(recipe: Recipe) -> list[Finding]:
    """All findings about keys that do not go together."""
    found: list[Finding] = []
    for rule in (_refused, _method, _unused, _precision, _parallel, _checkpointing, *RULES):
        found += rule(recipe)
    return found


RULES: tuple[Rule, ...] = (*adapter_rules.RULES, *schedule_rules.RULES)


def _refusals() -> dict[str, tuple[tuple[object, ...], str, str]]:
    """Keys that would break what the product guarantees: the values that are harmless, why, and what to do instead."""
    resume = _("use `ftui resume RUN`: it checks the checkpoint first")
    outside = _("the trained result is copied to output_dir at the end; publish it from there")
    return {
        "save_only_model": (
            (False,),
            _("checkpoints without optimizer and random state cannot be resumed"),
            _("delete it; the trained weights alone are in the run's final/"),
        ),
        "push_to_hub": ((False,), _("nothing is published while training"), outside),
        "hub_always_push": ((False,), _("nothing is published while training"), outside),
        "hub_token": (
            (None,),
            _("a secret in a recipe is copied into every run folder"),
            _("set HF_TOKEN in the environment or run `hf auth login`"),
        ),
        "resume_from_checkpoint": ((None,), _("a resume belongs to a run, not to a recipe"), resume),
        "restore_callback_states_from_checkpoint": ((False,), _("the run's own state is restored instead"), resume),
        "auto_find_batch_size": (
            (False,),
            _("a batch size that changes by itself changes the training and cannot be resumed exactly"),
            _("set per_device_train_batch_size; global_batch_size keeps the effective batch"),
        ),
        "enable_jit_checkpoint": (
            (False,),
            _("saving on a signal is done here, at a step's end and by all ranks together"),
            _("delete it: TERM, HUP and INT already save"),
        ),
        "local_rank": ((-1,), _("the launcher sets the rank"), _("delete it")),
        "inference_mode": ((False,), _("an adapter in inference mode is not trained"), _("delete it")),
        "peft_type": ((None, "LORA"), _("only LoRA adapters are trained"), _("delete it")),
        "peft_version": ((None,), _("PEFT fills it in"), _("delete it")),
        "auto_mapping": ((None,), _("PEFT fills it in"), _("delete it")),
        "base_model_name_or_path": ((None,), _("PEFT fills it in"), _("use model_name_or_path")),
        "lora_task_type": (("CAUSAL_LM",), _("only causal language models are trained"), _("delete it")),
    }


def _refused(recipe: Recipe) -> Iterator[Finding]:
    for key, (harmless, why, fix) in _refusals().items():
        if key in recipe.given and recipe.given[key] not in harmless:
            detail = _("{key} is refused: {why}").format(key=key, why=why)
            yield recipe.finding("conflict", "error", detail, fix, (key,), "refused")
    if recipe.get("ignore_data_skip"):
        detail = _("with ignore_data_skip a resumed run sees other data than an uninterrupted one")
        yield recipe.finding("not_exact", "warning", detail, _("delete it for an exact resume"), ("ignore_data_skip",))
    if recipe.get("trust_remote_code"):
        detail = _("trust_remote_code runs Python code that comes with the model")
        fix = _("leave it out unless you have read that code")
        yield recipe.finding("remote_code", "warning", detail, fix, ("trust_remote_code",))


def _method(recipe: Recipe) -> Iterator[Finding]:
    method, given = recipe.method, recipe.given
    four, eight = given.get("load_in_4bit"), given.get("load_in_8bit")
    use_peft = given.get("use_peft")
    if method == "full":
        for key in ("load_in_4bit", "load_in_8bit"):
            if given.get(key):
                detail = _("method full trains every weight; {key}: true makes them quantized and frozen").format(
                    key=key
                )
                yield from recipe.conflict(
                    ("method", key), detail, _("use method: qlora, or delete {key}").format(key=key)
                )
    elif method == "qlora":
        if four is False:
            detail = _("method qlora means a 4-bit base; load_in_4bit is false")
            yield from recipe.conflict(
                ("method", "load_in_4bit"), detail, _("use method: lora, or delete load_in_4bit")
            )
        if eight and "method" in given:
            detail = _("method qlora means a 4-bit base; load_in_8bit is true")
            fix = _("use method: lora with load_in_8bit, or delete load_in_8bit")
            yield from recipe.conflict(("method", "load_in_8bit"), detail, fix)
    elif four:
        detail = _("method lora means a 16-bit base; load_in_4bit is true")
        yield from recipe.conflict(("method", "load_in_4bit"), detail, _("use method: qlora, or delete load_in_4bit"))
    if four and eight:
        detail = _("a base cannot be loaded in 4 and in 8 bits")
        yield from recipe.conflict(("load_in_4bit", "load_in_8bit"), detail, _("keep one of them"))
    if use_peft is True and method == "full":
        detail = _("method full trains every weight; use_peft asks for an adapter")
        yield from recipe.conflict(("method", "use_peft"), detail, _("use method: lora, or delete use_peft"))
    if use_peft is False and method != "full":
        detail = _("method {method} trains an adapter; use_peft is false").format(method=method)
        yield from recipe.conflict(("method", "use_peft"), detail, _("use method: full, or delete use_peft"))


def _unused(recipe: Recipe) -> Iterator[Finding]:
    """Keys that mean nothing beside others: one note for each kind, never silence."""
    known, given = table(recipe.task), recipe.given
    meant = [key for key, value in given.items() if value not in (None, False, [], {})]
    groups: list[tuple[str, list[str], str]] = []
    if recipe.method == "full":
        lora = [key for key in meant if known[key].is_lora]
        groups.append(("method", lora, _("method full has no adapter: {keys} mean nothing")))
    if not recipe.get("load_in_4bit") and not recipe.get("load_in_8bit"):
        bits = [key for key in meant if "bnb" in key or key == "kbit_prepare"]
        groups.append(("method", bits, _("the base is not quantized: {keys} mean nothing")))
    hub = [key for key in meant if key.startswith("hub_") and key not in _refusals()]
    groups.append(("push_to_hub", hub, _("nothing is published while training: {keys} mean nothing")))
    for steps, strategy in (("eval_steps", "eval_strategy"), ("save_steps", "save_strategy")):
        if recipe.get(strategy) != "steps" and steps in meant and strategy in given:
            groups.append((strategy, [steps], _("{strategy} is not `steps`: {keys} means nothing")))
    for other, keys, detail in groups:
        if keys:
            named = ", ".join(keys[:6]) + (", …" if len(keys) > 6 else "")
            yield from recipe.unused((*keys, other), detail.format(keys=named, strategy=other), len(keys))


def _precision(recipe: Recipe) -> Iterator[Finding]:
    get = recipe.get
    for low, high in (("fp16", "bf16"), ("fp16_full_eval", "bf16_full_eval")):
        if get(low) and get(high) and recipe.says(low):
            detail = _("{a} and {b} are two precisions: only one can be used").format(a=low, b=high)
            yield from recipe.conflict((low, high), detail, _("keep bf16 where the GPU has it, else fp16"))
    cpu = get("device") == "cpu" or recipe.given.get("use_cpu") is True
    device = "device" if get("device") == "cpu" else "use_cpu"
    for key, name in (("fp16", "fp16"), ("tf32", "TF32"), ("fp8", "FP8")):
        if cpu and get(key):
            detail = _("{name} needs a GPU; the recipe trains on the CPU").format(name=name)
            yield from recipe.conflict((key, device), detail, _("delete {key}").format(key=key))
    if cpu and get("use_liger_kernel"):
        detail = _("Liger's kernels need a GPU; the recipe trains on the CPU")
        yield from recipe.conflict(("use_liger_kernel", device), detail, _("delete use_liger_kernel"))
    if get("fp16") and recipe.given.get("dtype") == "bfloat16":
        detail = _("fp16 scales float16 gradients; dtype is bfloat16")
        yield from recipe.conflict(("fp16", "dtype"), detail, _("use bf16: true instead of fp16"))
    if recipe.method == "full" and get("fp16") and recipe.given.get("dtype") == "float16":
        detail = _("fp16 training keeps float32 weights; dtype float16 leaves no gradient to scale")
        yield from recipe.conflict(("fp16", "dtype"), detail, _("use dtype: float32"))
    if (
        recipe.method == "full"
        and recipe.says("bf16_master", "dtype")
        and recipe.given.get("dtype") not in (None, "auto")
    ):
        wanted = {"fp32": "float32", "bf16": "bfloat16"}[get("bf16_master")]
        if recipe.says("bf16_master") and get("dtype") != wanted:
            detail = _("bf16_master {master} means dtype {wanted}; the recipe says {dtype}").format(
                master=get("bf16_master"), wanted=wanted, dtype=get("dtype")
            )
            yield from recipe.conflict(("bf16_master", "dtype"), detail, _("keep one of them"))
    if get("fp8") and (get("load_in_4bit") or get("load_in_8bit")):
        detail = _("FP8 training needs a 16-bit base; this one is quantized")
        yield from recipe.conflict(
            ("fp8", "method", "load_in_4bit", "load_in_8bit"), detail, _("use method: lora or full")
        )
    if get("fp8") and get("fp16"):
        yield from recipe.conflict(("fp8", "fp16"), _("FP8 training runs beside bf16, not fp16"), _("delete fp16"))


def _parallel(recipe: Recipe) -> Iterator[Finding]:
    get, given = recipe.get, recipe.given
    asked, gpus, machines = given.get("sharding", "auto"), given.get("num_gpus"), get("num_machines")
    cpu = given.get("device") == "cpu"
    if cpu and given.get("use_cpu") is False:
        yield from recipe.conflict(("device", "use_cpu"), _("device is cpu; use_cpu is false"), _("keep one of them"))
    if cpu and asked in ("fsdp2", "zero2", "zero3", "pipeline"):
        detail = _("sharding {sharding} needs GPUs; the recipe trains on the CPU").format(sharding=asked)
        yield from recipe.conflict(("sharding", "device"), detail, _("use sharding: ddp or none"))
    if cpu and get("backend") == "unsloth":
        yield from recipe.conflict(("backend", "device"), _("Unsloth needs a GPU"), _("use backend: trl"))
    world = (gpus or 1) * machines
    if asked == "none" and world > 1:
        detail = _("sharding none trains on one GPU; the recipe asks for {world}").format(world=world)
        yield from recipe.conflict(("sharding", "num_gpus", "num_machines"), detail, _("use sharding: ddp or auto"))
    if asked == "pipeline" and (gpus == 1 or machines > 1):
        detail = _("sharding pipeline spreads layers over several GPUs of one machine")
        yield from recipe.conflict(("sharding", "num_gpus", "num_machines"), detail, _("use num_gpus above 1"))
    if asked in ("fsdp2", "zero2", "zero3") and gpus == 1 and machines == 1:
        detail = _("{sharding} on one GPU has nothing to shard").format(sharding=asked)
        yield from recipe.conflict(("sharding", "num_gpus"), detail, _("use sharding: none"), "warning")
    if get("optim") == "muon" and asked in ("fsdp2", "zero2", "zero3"):
        detail = _("torch's Muon works on whole matrices; sharding is {sharding}").format(sharding=asked)
        yield from recipe.conflict(("optim", "sharding"), detail, _("use sharding: ddp, or another optim"))
    if get("cpu_offload") and asked in ("none", "ddp", "pipeline"):
        detail = _("cpu_offload moves sharded state; sharding is {sharding}").format(sharding=asked)
        yield from recipe.conflict(("cpu_offload", "sharding"), detail, _("use sharding: fsdp2, zero2 or zero3"))
    if get("backend") == "unsloth" and (world > 1 or asked not in ("auto", "none")):
        detail = _("Unsloth trains on one GPU without sharding")
        yield from recipe.conflict(("backend", "sharding", "num_gpus", "num_machines"), detail, _("use backend: trl"))
    if given.get("deepspeed") and asked not in ("auto", "zero2", "zero3"):
        detail = _("deepspeed configures ZeRO; sharding is {sharding}").format(sharding=asked)
        yield from recipe.conflict(
            ("deepspeed", "sharding"), detail, _("use sharding: zero2 or zero3, or delete deepspeed")
        )
    for key in ("fsdp", "fsdp_config"):
        if given.get(key) and asked not in ("auto", "fsdp2"):
            detail = _("{key} configures FSDP; sharding is {sharding}").format(key=key, sharding=asked)
            yield from recipe.conflict(
                (key, "sharding"), detail, _("use sharding: fsdp2, or delete {key}").format(key=key)
            )
        if given.get(key) and given.get("deepspeed"):
            detail = _("{key} and deepspeed are two ways to shard").format(key=key)
            yield from recipe.conflict((key, "deepspeed"), detail, _("keep one of them, or use sharding alone"))
    storage = given.get("bnb_4bit_quant_storage")
    if asked == "fsdp2" and get("load_in_4bit") and storage and storage != get("dtype"):
        detail = _("FSDP2 shards one dtype: bnb_4bit_quant_storage must be {dtype}").format(dtype=get("dtype"))
        yield from recipe.conflict(("sharding", "bnb_4bit_quant_storage"), detail, _("delete bnb_4bit_quant_storage"))


def _checkpointing(recipe: Recipe) -> Iterator[Finding]:
    given = recipe.given
    for old in ("gradient_checkpointing", "gradient_checkpointing_kwargs"):
        new = old.replace("gradient", "activation")
        if given.get(new) is not None and given.get(old) is not None and given[new] != given[old]:
            detail = _("{old} and {new} are one setting with two values").format(old=old, new=new)
            yield from recipe.conflict((old, new), detail, _("keep one of them"))
        options = given.get(old) if given.get(new) is None else given.get(new)
        name = old if given.get(new) is None else new
        if not isinstance(options, dict) or not old.endswith("kwargs"):
            continue
        if options.get("selective") and not recipe.get("gradient_checkpointing"):
            detail = _("selective checkpointing needs gradient_checkpointing: true")
            yield from recipe.conflict((name, "gradient_checkpointing"), detail, _("turn it on or delete selective"))
        if options.get("selective") and options.get("use_reentrant"):
            detail = _("selective checkpointing needs use_reentrant: false")
            yield from recipe.conflict((name,), detail, _("delete use_reentrant"))
    shard = given.get("fsdp_config")
    twice = ("activation_checkpointing", "fsdp_activation_checkpointing")
    if isinstance(shard, dict) and recipe.get("gradient_checkpointing") and any(shard.get(key) for key in twice):
        detail = _("activation checkpointing is on twice: in fsdp_config and for the trainer")
        fix = _("set gradient_checkpointing: false, or delete it from fsdp_config")
        yield from recipe.conflict(("fsdp_config", "gradient_checkpointing"), detail, fix)
    kernels = given.get("liger_kernel_config")
    if isinstance(kernels, dict) and kernels.get("fused_linear_cross_entropy"):
        detail = _("TRL computes the loss itself: Liger's fused_linear_cross_entropy would replace its forward")
        yield from recipe.conflict(("liger_kernel_config",), detail, _("delete fused_linear_cross_entropy"))
