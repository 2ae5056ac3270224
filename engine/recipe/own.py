"""The recipe's own keys: what TRL and PEFT have no name for. Same form as the generated table."""

from __future__ import annotations

from typing import Any

METHODS = ("lora", "qlora", "full")
TASKS = ("sft", "dpo", "pretrain")
SHARDINGS = ("auto", "none", "ddp", "fsdp2", "zero2", "zero3", "pipeline")
GUARDS = ("ignore", "warn", "stop", "rollback")

OWN: dict[str, dict[str, Any]] = {
    "method": {
        "types": ["str"],
        "default": "lora",
        "choices": METHODS,
        "help": "What is trained: adapters on a 16-bit base, adapters on a 4-bit base, or every weight",
    },
    "task": {
        "types": ["str"],
        "default": "sft",
        "choices": TASKS,
        "help": "Supervised fine-tuning, preference training, or plain text",
    },
    "random_init": {
        "types": ["bool"],
        "default": False,
        "help": "Pretrain from random weights: only config.json and the tokenizer of the model are used",
    },
    "dataset_path": {
        "types": ["str", "null"],
        "default": None,
        "help": "Training data: file, folder, glob, hf://owner/name or builtin:support",
    },
    "eval_dataset_path": {
        "types": ["str", "null"],
        "default": None,
        "help": "Evaluation data; without it a part of the training data is held out",
    },
    "dataset_columns": {
        "types": ["dict", "null"],
        "default": None,
        "help": "Our names of columns to those of the data, for example {prompt: question, completion: answer}",
    },
    "test_size": {"types": ["float"], "default": 0.05, "help": "Share of the training data held out for evaluation"},
    "global_batch_size": {
        "types": ["int", "null"],
        "default": 16,
        "help": "Sequences per optimizer step over all GPUs; accumulation is derived from it",
    },
    "warmup_ratio": {
        "types": ["float", "null"],
        "default": None,
        "help": "Share of the run that warms up (older spelling of warmup_steps below 1)",
    },
    "bf16_master": {
        "types": ["str"],
        "default": "fp32",
        "choices": ("fp32", "bf16"),
        "help": "Precision of the trained weights under method full: fp32 master weights, or bf16 alone",
    },
    "bnb_4bit_compute_dtype": {
        "types": ["str", "null"],
        "default": None,
        "choices": ("bfloat16", "float16", "float32"),
        "help": "Precision in which a 4-bit base is computed",
    },
    "kbit_prepare": {
        "types": ["bool"],
        "default": False,
        "help": "PEFT's k-bit preparation: norms and head of a quantized base in fp32",
    },
    "sharding": {
        "types": ["str"],
        "default": "auto",
        "choices": SHARDINGS,
        "help": "How the model is spread over GPUs",
    },
    "num_gpus": {"types": ["int", "null"], "default": None, "help": "GPUs to use on each machine; all when not given"},
    "num_machines": {"types": ["int"], "default": 1, "help": "Machines that train together"},
    "device": {
        "types": ["str"],
        "default": "auto",
        "choices": ("auto", "cpu"),
        "help": "GPUs where there are any, or the CPU",
    },
    "cpu_offload": {"types": ["bool"], "default": False, "help": "Keep sharded state in host memory"},
    "fp8": {"types": ["bool"], "default": False, "help": "Matrix products in FP8 (H100 and newer)"},
    "backend": {
        "types": ["str"],
        "default": "trl",
        "choices": ("trl", "unsloth"),
        "help": "The library that runs the training loop",
    },
    "gates": {
        "types": ["list[str]", "null"],
        "default": None,
        "help": "Conditions that the tuned model must meet after evaluation",
    },
    "eval_task_path": {
        "types": ["str", "null"],
        "default": None,
        "help": "Rows with prompts and expected answers that `ftui eval` scores; else the held-out rows",
    },
    "eval_metrics": {
        "types": ["list[str]", "null"],
        "default": None,
        "help": "How answers are scored: exact_match, contains, numeric, json, f1, chrf, ... or file.py:function",
    },
    "eval_extract": {
        "types": ["str", "null"],
        "default": None,
        "help": "A regular expression: only its last group, in answer and reference, is compared",
    },
    "eval_samples": {
        "types": ["int"],
        "default": 4,
        "help": "Held-out prompts answered at each evaluation while it trains; 0 for none",
    },
    "eval_max_new_tokens": {
        "types": ["int"],
        "default": 256,
        "help": "Tokens that an answer may have in `ftui eval`",
    },
    "chat_template_path": {
        "types": ["str", "null"],
        "default": None,
        "help": "A chat template (.jinja) or a tokenizer folder to take it from",
    },
    "on_nan": {
        "types": ["str"],
        "default": "stop",
        "choices": ("stop", "rollback"),
        "help": "When the loss is no number: stop, or go back to the newest good checkpoint",
    },
    "on_loss_spike": {
        "types": ["str"],
        "default": "warn",
        "choices": GUARDS,
        "help": "When the loss jumps above loss_spike_factor times what it was and stays there",
    },
    "on_eval_rise": {
        "types": ["str"],
        "default": "warn",
        "choices": GUARDS,
        "help": "When eval_rise_patience evaluations in a row are worse than the best one",
    },
    "loss_spike_factor": {
        "types": ["float"],
        "default": 2.0,
        "help": "How many times the median of the last 50 losses the newest five must be to count as a spike",
    },
    "eval_rise_patience": {
        "types": ["int"],
        "default": 3,
        "help": "How many evaluations in a row above the best one count as a rise",
    },
    "max_rollbacks": {"types": ["int"], "default": 2, "help": "Rollbacks after which the run stops instead"},
    "hang_after_s": {
        "types": ["float"],
        "default": 600.0,
        "help": "Seconds without a sign of life after which the ranks count as hanging; 0 never",
    },
    "hang_factor": {
        "types": ["float"],
        "default": 20.0,
        "help": "Step times without a sign of life that must pass as well before the ranks count as hanging",
    },
    "retention": {
        "types": ["dict", "null"],
        "default": None,
        "help": "Rules for keeping checkpoints: keep_last, keep_best, metric, greater_is_better, keep_every, "
        "weights_only, max_gb, min_free_gb",
    },
    "async_save": {
        "types": ["bool", "null"],
        "default": None,
        "help": "Write checkpoints while training goes on; by default where host memory has room for a copy",
    },
    "backup": {"types": ["dict", "str", "null"], "default": None, "help": "Where checkpoints are copied to"},
}

# One thing under two names: the name on the left is accepted and stands for the one on the right.
SYNONYMS = {
    "r": "lora_r",
    "target_modules": "lora_target_modules",
    "target_parameters": "lora_target_parameters",
    "modules_to_save": "lora_modules_to_save",
    "task_type": "lora_task_type",
    "revision": "model_revision",
}

# Names from other tools and from older versions, with the key that does it here.
FORMER = {
    "adapter": "method",
    "base_model": "model_name_or_path",
    "batch_size": "per_device_train_batch_size",
    "cutoff_len": "max_length",
    "dataset": "dataset_path",
    "dataset_dir": "dataset_path",
    "dataset_name": "dataset_path",
    "datasets": "dataset_path",
    "epochs": "num_train_epochs",
    "eval_dataset": "eval_dataset_path",
    "evaluation_strategy": "eval_strategy",
    "finetuning_type": "method",
    "flash_attention": "attn_implementation",
    "group_by_length": "train_sampling_strategy",
    "lora_rank": "lora_r",
    "lora_target": "lora_target_modules",
    "lora_target_linear": "lora_target_modules",
    "lr": "learning_rate",
    "lr_scheduler": "lr_scheduler_type",
    "max_seq_len": "max_length",
    "max_seq_length": "max_length",
    "micro_batch_size": "per_device_train_batch_size",
    "model": "model_name_or_path",
    "no_cuda": "device",
    "num_epochs": "num_train_epochs",
    "optimizer": "optim",
    "batchsize": "per_device_train_batch_size",
    "per_device_batch_size": "per_device_train_batch_size",
    "train_batch_size": "per_device_train_batch_size",
    "per_gpu_eval_batch_size": "per_device_eval_batch_size",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "push_to_hub_model_id": "hub_model_id",
    "push_to_hub_token": "hub_token",
    "sample_packing": "packing",
    "sequence_len": "max_length",
    "stage": "task",
    "torch_dtype": "dtype",
    "train_on_inputs": "assistant_only_loss",
    "val_set_size": "test_size",
}
