"""The trainer's arguments from the flat recipe: every key they know passes through, but for those the run decides."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from engine.errors import UsageError
from engine.text import _
from engine.train import muon, sharding, tasks
from engine.train.job import Job
from engine.train.model import device

# Decided by what the product promises, whatever the recipe says; the recipe's check tells the user.
_OURS = (
    "output_dir", "save_total_limit", "save_only_model", "push_to_hub", "use_cpu", "resume_from_checkpoint",
    "chat_template_path", "fsdp", "fsdp_config", "deepspeed",
)  # fmt: skip


def build(job: Job) -> Any:
    """The trainer's arguments, of the class that the task takes; also makes the process group.

    Raises:
        UsageError: the combination of values is refused by the library.
    """
    kind = tasks.of(job).arguments
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}
    options: dict[str, Any] = {}
    for name, field in fields.items():
        value = job.recipe.get(name)
        # Only what differs from the default: an old and a new spelling of one thing may both be in the table.
        if value is not None and name not in _OURS and value != _default(field):
            options[name] = value
    if (ratio := job.get("warmup_ratio")) and not options.get("warmup_steps"):
        options["warmup_steps"] = float(ratio)
    if options.get("optim") == muon.NAME:
        options.pop("optim")  # the trainer is told: see `program`
    on_cpu = device(job).type == "cpu"
    if job.recipe.get("bf16") is None and not options.get("fp16"):  # TRL would take bf16, supported or not
        options["bf16"] = not on_cpu and torch.cuda.is_bf16_supported(including_emulation=False)
    if sharding.pure_bf16(job.recipe):
        options["bf16"] = False
    for name, value in sharding.trainer_options(job.recipe, job.rank.world_size).items():
        given = options.get(name)
        options[name] = {**given, **value} if isinstance(given, dict) else value
    options.update(
        output_dir=str(job.run.checkpoints),
        save_total_limit=None,  # old checkpoints go only after the new one is sealed: engine.checkpoint.retention
        save_only_model=False,
        push_to_hub=False,
        use_cpu=on_cpu,
        report_to=[],
        disable_tqdm=True,
        logging_nan_inf_filter=bool(job.recipe.get("logging_nan_inf_filter", False)),  # a NaN must be seen
    )
    try:
        return kind(**options)
    except (TypeError, ValueError) as error:
        text = str(error).strip().splitlines()
        raise UsageError(
            _("the trainer refuses the recipe: {reason}").format(
                reason=text[0][:300] if text else type(error).__name__
            ),
            where=str(job.run.resolved),
            fix=_("change the recipe and start again"),
            kind="bad_value",
        ) from error


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else None
