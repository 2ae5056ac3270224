"""Fills in what a recipe leaves open.

Constant defaults are those of a recipe for an 8B model on one GPU that is known to work (2 epochs, 2,048 tokens,
r 16 with alpha 32 on all linear layers, effective batch 16, cosine with 3 % warm-up, evaluation and a checkpoint each
tenth of the run); keys not named here keep the library's default. The rest depends on something:

=============================  ==================================================================================
method                         `qlora` when `load_in_4bit: true`, `full` when `use_peft: false`, else `lora`
use_peft, load_in_4bit         follow `method`
learning_rate                  sft, pretrain: 2e-4 with adapters, 2e-5 full; dpo: 1e-5 with adapters, 1e-6 full
lora_dropout                   0 with `lora_target_parameters` (PEFT allows no other there), else 0.05
bf16                           true on a GPU that has it and without `fp16`; false on the CPU (fp32, bitwise resumable)
dtype                          adapters: bfloat16 on such a GPU (float16 with `fp16`), else float32;
                               full: float32 (master weights), bfloat16 with `bf16_master: bf16`
bnb_4bit_compute_dtype         as `dtype`; `bnb_4bit_quant_storage` as `dtype` under `fsdp2` (it shards one dtype only)
use_bnb_nested_quant           true under qlora (double quantization)
gradient_accumulation_steps    `global_batch_size` / (`per_device_train_batch_size` x GPUs), see `batch`
test_size                      0 with `eval_dataset_path`, else 0.05
eval_strategy                  `no` without evaluation data, else `steps`; follows `save_strategy` when
save_strategy                  `load_best_model_at_end` is on and only one of the two is given (same for the steps)
warmup_steps                   `warmup_ratio` when that is given; 0 with the schedule `constant`; else 0.03
per_device_eval_batch_size     as `per_device_train_batch_size`
gradient_checkpointing         follows `activation_checkpointing` (its newer name) when that is given; else true
use_cpu                        `device: cpu`, or no GPU
num_gpus                       under `device: cpu` as given: so many processes train on the CPU, beside each other
sharding                       `auto`: none on one GPU, ddp on several
logging_nan_inf_filter         false: a loss that is not a number must be seen
assistant_only_loss            null: the engine turns it on where data and chat template allow it; false under pretrain
packing                        true under pretrain, where max_length is given, with the strategy `bfd_split`
=============================  ==================================================================================
"""

from __future__ import annotations

from typing import Any

from engine.errors import UsageError
from engine.recipe.keys import table
from engine.text import _

CONSTANT: dict[str, Any] = {
    "num_train_epochs": 2,
    "per_device_train_batch_size": 2,
    "learning_rate": 2e-4,
    "lr_scheduler_type": "cosine",
    "warmup_steps": 0.03,
    "max_length": 2048,
    "train_sampling_strategy": "group_by_length",  # half of a batch is padding otherwise
    "logging_steps": 10,
    "logging_nan_inf_filter": False,
    "eval_steps": 0.1,
    "save_steps": 0.1,
    "save_total_limit": 3,
    "lora_target_modules": "all-linear",
    "assistant_only_loss": None,
    "report_to": "none",
    "seed": 42,
}
RATES = {("sft", True): CONSTANT["learning_rate"], ("sft", False): 2e-5, ("dpo", True): 1e-5, ("dpo", False): 1e-6}
DERIVED = frozenset(
    (
        "method", "use_peft", "load_in_4bit", "use_bnb_nested_quant", "bnb_4bit_compute_dtype",
        "bnb_4bit_quant_storage", "lora_dropout", "learning_rate", "warmup_steps", "bf16", "dtype", "use_cpu",
        "num_gpus", "sharding", "global_batch_size", "gradient_accumulation_steps", "per_device_eval_batch_size",
        "gradient_checkpointing", "test_size", "eval_strategy", "save_strategy", "eval_steps", "save_steps",
    )
)  # fmt: skip


def method_of(given: dict[str, Any]) -> str:
    """The method, also where the recipe says it only with TRL's keys."""
    if "method" in given:
        return str(given["method"])
    if given.get("use_peft") is False:
        return "full"
    return "qlora" if given.get("load_in_4bit") else "lora"


def fill(given: dict[str, Any], *, num_gpus: int | None = None, bf16_available: bool = True) -> dict[str, Any]:
    """Every key of the recipe's task with its value.

    Args:
        given: the recipe's own values under canonical names.
        num_gpus: GPUs of one machine; None when not known yet (one is assumed).
        bf16_available: whether those GPUs compute in bfloat16.
    """
    task = str(given.get("task", "sft"))
    values = {name: key.default for name, key in table(task).items()}
    values.update({name: value for name, value in CONSTANT.items() if name in values})
    values.update({name: value for name, value in given.items() if name in values})
    if num_gpus is None:
        num_gpus = given["num_gpus"] if given.get("num_gpus") is not None else 1
    _method(values, given, task)
    _device(values, given, num_gpus, bf16_available)
    _schedule(values, given)
    if "activation_checkpointing" in given and given["activation_checkpointing"] is not None:
        values["gradient_checkpointing"] = given["activation_checkpointing"]
    values["global_batch_size"], values["gradient_accumulation_steps"] = batch(given, values)
    return values


def _method(values: dict[str, Any], given: dict[str, Any], task: str) -> None:
    method = values["method"] = method_of(given)
    adapters = method != "full"
    values["use_peft"] = adapters
    values.setdefault("load_in_4bit", False)
    if "load_in_4bit" not in given:
        values["load_in_4bit"] = method == "qlora"
    if "learning_rate" not in given:
        values["learning_rate"] = RATES["dpo" if task == "dpo" else "sft", adapters]
    if "use_bnb_nested_quant" not in given:
        values["use_bnb_nested_quant"] = method == "qlora"
    if "lora_dropout" not in given and given.get("lora_target_parameters"):
        values["lora_dropout"] = 0.0
    if task == "pretrain":
        if "assistant_only_loss" not in given:
            values["assistant_only_loss"] = False
        if "packing" not in given and values["max_length"] is not None:  # plain text is padding for the rest
            values["packing"] = True
        if "packing_strategy" not in given:
            values["packing_strategy"] = "bfd_split"


def _device(values: dict[str, Any], given: dict[str, Any], num_gpus: int, bf16_available: bool) -> None:
    cpu = num_gpus == 0 or values["device"] == "cpu" or bool(given.get("use_cpu"))
    values["use_cpu"] = cpu
    processes = given.get("num_gpus") or 0 if values["device"] == "cpu" else 0
    values["num_gpus"] = processes if cpu else num_gpus
    world = ranks(values)
    if values["sharding"] == "auto":
        values["sharding"] = "none" if world == 1 else "ddp"
    if given.get("bf16") is None:
        values["bf16"] = not cpu and bf16_available and not values["fp16"]
    if given.get("dtype") is None:
        half = "bfloat16" if values["bf16"] else "float16" if values["fp16"] else "float32"
        master = values["bf16_master"] == "fp32"
        values["dtype"] = "float32" if not values["use_peft"] and master else half
    if given.get("bnb_4bit_compute_dtype") is None:
        values["bnb_4bit_compute_dtype"] = values["dtype"] if values["dtype"] != "auto" else None
    if given.get("bnb_4bit_quant_storage") is None and values["load_in_4bit"] and values["sharding"] == "fsdp2":
        values["bnb_4bit_quant_storage"] = values["dtype"]


def ranks(values: dict[str, Any]) -> int:
    """Processes that train different rows, on all machines: one a GPU, or as many as `num_gpus` says on the CPU.

    Layers that are split over GPUs work in turn, in one process.
    """
    if values["sharding"] == "pipeline":
        return 1
    return max(1, values["num_gpus"] or 0) * int(values["num_machines"])


def _schedule(values: dict[str, Any], given: dict[str, Any]) -> None:
    if "test_size" not in given and values["eval_dataset_path"]:
        values["test_size"] = 0.0
    if "per_device_eval_batch_size" not in given:
        values["per_device_eval_batch_size"] = values["per_device_train_batch_size"]
    if "warmup_steps" not in given:
        ratio = values["warmup_ratio"]
        constant = values["lr_scheduler_type"] == "constant"
        values["warmup_steps"] = ratio if ratio is not None else 0 if constant else CONSTANT["warmup_steps"]
    best = bool(values["load_best_model_at_end"])
    if "eval_strategy" not in given:
        has_data = bool(values["eval_dataset_path"]) or values["test_size"] > 0
        follows = best and given.get("save_strategy") in ("epoch", "steps")
        values["eval_strategy"] = "no" if not has_data else given["save_strategy"] if follows else "steps"
    if "save_strategy" not in given and best and values["eval_strategy"] == "epoch":
        values["save_strategy"] = "epoch"
    if best and given.get("eval_steps") and "save_steps" not in given:
        values["save_steps"] = given["eval_steps"]
    if best and given.get("save_steps") and "eval_steps" not in given:
        values["eval_steps"] = given["save_steps"]
    if values["eval_steps"] is None:
        values["eval_steps"] = CONSTANT["eval_steps"] if values["eval_strategy"] == "steps" else None


def batch(given: dict[str, Any], values: dict[str, Any]) -> tuple[int, int]:
    """The global batch and the accumulation that gives it on this number of GPUs.

    `global_batch_size` rules: the same recipe takes the same optimizer steps on one GPU and on four. A recipe that
    gives only `gradient_accumulation_steps` keeps it, and its global batch grows with the GPUs. The default of 16 is
    met as nearly as the micro-batch allows.

    Raises:
        UsageError: a given global batch cannot be made on these GPUs.
    """
    micro = values["per_device_train_batch_size"] * ranks(values)
    wanted, accumulation = given.get("global_batch_size"), given.get("gradient_accumulation_steps")
    if wanted is None:
        if accumulation is None:
            accumulation = max(1, round(values["global_batch_size"] / micro)) if values["global_batch_size"] else 1
        return micro * accumulation, accumulation
    if wanted % micro or (accumulation is not None and micro * accumulation != wanted):
        times = f" x {accumulation}" if accumulation is not None else ""
        raise UsageError(
            _("global_batch_size {wanted} cannot be made of {size} sequences on {gpus} GPU(s){times}").format(
                wanted=wanted,
                size=values["per_device_train_batch_size"],
                gpus=ranks(values),
                times=times,
            ),
            where="global_batch_size",
            fix=_("choose a multiple of {micro}").format(micro=micro)
            if accumulation is None
            else _("set it to {total}, or leave gradient_accumulation_steps out").format(total=micro * accumulation),
            kind="conflict",
        )
    return wanted, wanted // micro
