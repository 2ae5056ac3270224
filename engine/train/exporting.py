"""The trained weights as other tools read them: gathered from all ranks where they are sharded."""

from __future__ import annotations

from typing import Any


def is_sharded(trainer: Any) -> bool:
    """Whether FSDP keeps each rank's part to itself, in checkpoints too."""
    return bool(trainer.is_fsdp_enabled) and "SHARDED" in str(trainer.accelerator.state.fsdp_plugin.state_dict_type)


def export(trainer: Any, folder: str, *, only_adapter: bool = False) -> None:
    """Write adapter or weights, configuration and tokenizer to `folder`; all ranks must call it.

    Args:
        trainer: at any step.
        folder: where to; rank 0 writes.
        only_adapter: leave out the weights of a model that is trained whole: they are in the shards.
    """
    if not is_sharded(trainer):
        trainer.save_model(folder, _internal_call=True)
        return
    if only_adapter and not _has_adapter(trainer):
        if trainer.args.should_save:
            _describe(trainer, folder)
        return
    state = _gathered(trainer)
    if trainer.args.should_save:
        trainer._save(folder, state_dict=state)


def _has_adapter(trainer: Any) -> bool:
    return hasattr(trainer.accelerator.unwrap_model(trainer.model), "peft_config")


def _gathered(trainer: Any) -> dict[str, Any]:
    """The trained weights on rank 0, nothing on the others."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    options = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=_has_adapter(trainer))
    state = dict(get_model_state_dict(trainer.model, options=options))
    tied = getattr(trainer.accelerator.unwrap_model(trainer.model), "all_tied_weights_keys", None) or {}
    for name, source in tied.items():  # one weight under two names comes out as two
        if name in state and source in state and state[name].equal(state[source]):
            del state[name]
    return state


def _describe(trainer: Any, folder: str) -> None:
    model = trainer.accelerator.unwrap_model(trainer.model)
    model.config.save_pretrained(folder)
    if (generation := getattr(model, "generation_config", None)) is not None:
        generation.save_pretrained(folder)
    if trainer.processing_class is not None:
        trainer.processing_class.save_pretrained(folder)
