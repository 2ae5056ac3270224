"""How rows become batches: packed rows that do not see each other, and rows of like length side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import Sampler

from engine.errors import UsageError
from engine.text import _
from engine.train.data import lengths

SLICES = 64  # slices that are sorted together: more would sort the whole epoch by length
PROBE = 8  # tokens of each of the two rows that are tried
USEFUL = "useful_tokens"
RECURRENT = ("linear_attention", "mamba", "conv", "recurrent", "hybrid")


@dataclass
class PackedRows:
    """Puts packed rows into a batch, each in a line of its own.

    There is no attention mask: from positions that begin again the model makes one in which no row sees another.
    TRL lays a whole batch out in one line instead, which is right for FlashAttention and costs the others, whose work
    grows with the square of the line, the batch size once more.
    """

    pad_token_id: int
    pad_to_multiple_of: int | None = None

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        sizes = [len(example["input_ids"]) for example in examples]
        width = max(sizes)
        if self.pad_to_multiple_of:
            width = -(-width // self.pad_to_multiple_of) * self.pad_to_multiple_of
        ids = torch.full((len(examples), width), self.pad_token_id)
        labels = torch.full((len(examples), width), -100)
        positions = torch.zeros((len(examples), width), dtype=torch.long)  # each pad is a row of its own
        for line, example in enumerate(examples):
            size = sizes[line]
            ids[line, :size] = torch.as_tensor(example["input_ids"])
            labels[line, :size] = torch.as_tensor(example["labels"])
            pieces = np.asarray(example.get("seq_lengths") or [size])
            starts = np.cumsum(pieces) - pieces
            positions[line, :size] = torch.from_numpy(np.arange(size) - np.repeat(starts, pieces))
        return {
            "input_ids": ids,
            "labels": labels,
            "position_ids": positions,
            USEFUL: torch.tensor(sum(sizes)),
        }


class LengthGrouped(Sampler[int]):
    """An epoch in which the rows that are padded together have like lengths, and steps still mix all lengths.

    Rows are shuffled, sorted by length in stretches, cut into slices of what all ranks take in one micro-batch, and
    the slices are shuffled. The longest comes first: what does not fit into memory fails at once.
    """

    def __init__(self, sizes: Any, batch_size: int, world_size: int, seed: int) -> None:
        self.sizes = np.asarray(sizes)
        self.slice = batch_size * world_size
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """The order is that of this epoch; the same one for all ranks, and after a resume."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.sizes)

    def __iter__(self) -> Iterator[int]:
        random = np.random.default_rng((self.seed, self.epoch))
        order = random.permutation(len(self.sizes))
        stretch = self.slice * SLICES
        for first in range(0, len(order), stretch):
            part = order[first : first + stretch]
            order[first : first + stretch] = part[np.argsort(-self.sizes[part], kind="stable")]
        whole = len(order) // self.slice
        slices = order[: whole * self.slice].reshape(whole, self.slice)
        slices = slices[random.permutation(whole)]
        if whole:
            longest = int(self.sizes[slices].max(axis=1).argmax())
            slices[[0, longest]] = slices[[longest, 0]]
        return iter([*slices.reshape(-1).tolist(), *order[whole * self.slice :].tolist()])


def _is_packed(dataset: Any) -> bool:
    return dataset is not None and "seq_lengths" in dataset.column_names


def _attention(model: Any) -> str:
    return str(getattr(getattr(model, "config", None), "_attn_implementation", "") or "")


class Grouping:
    """The order of rows, for any of TRL's trainers. A base that goes before the trainer's class."""

    args: Any

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        dataset = self.train_dataset if train_dataset is None else train_dataset  # type: ignore[attr-defined]
        return self._grouped(dataset, self.args.train_batch_size) or super()._get_train_sampler(train_dataset)  # type: ignore[misc]

    def _get_eval_sampler(self, eval_dataset: Any) -> Any:
        return self._grouped(eval_dataset, self.args.eval_batch_size) or super()._get_eval_sampler(eval_dataset)  # type: ignore[misc]

    def _grouped(self, dataset: Any, batch_size: int) -> LengthGrouped | None:
        if self.args.train_sampling_strategy != "group_by_length":
            return None
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        return LengthGrouped(lengths(dataset), batch_size, max(1, self.args.world_size), seed)


class Batches(Grouping):
    """Batches of tokenized rows for TRL's supervised trainer. A base that goes before the trainer's class."""

    def __init__(self, *, model: Any, args: Any, train_dataset: Any, eval_dataset: Any = None, **options: Any) -> None:
        packed = _is_packed(train_dataset) or _is_packed(eval_dataset)
        flash = "flash" in _attention(model)
        # Only for FlashAttention TRL's own layout is the right one; `packing` is not about the rows any more.
        args.packing = packed and flash
        args.eval_packing = None
        if packed:
            args.padding_free = False
        super().__init__(model=model, args=args, train_dataset=train_dataset, eval_dataset=eval_dataset, **options)
        if packed and not flash:
            theirs = self.data_collator  # type: ignore[has-type]
            self.data_collator = PackedRows(theirs.pad_token_id, theirs.pad_to_multiple_of)
            refuse_leaks(self.model)  # type: ignore[attr-defined]

    def compute_loss(self, model: Any, inputs: dict[str, Any], *more: Any, **options: Any) -> Any:
        """TRL counts the columns of a batch without attention mask as its tokens; ours says how many there are."""
        useful = inputs.pop(USEFUL, None)
        before = self._total_train_tokens  # type: ignore[has-type]
        loss = super().compute_loss(model, inputs, *more, **options)  # type: ignore[misc]
        if useful is not None and self.model.training:  # type: ignore[attr-defined]
            # not gather_for_metrics: it takes ranks for rows at the end of an epoch, and leaves some out
            count = self.accelerator.gather(useful).sum().item()  # type: ignore[attr-defined]
            self._total_train_tokens = before + count
            self._metrics["train"]["num_tokens"] = [self._total_train_tokens]  # type: ignore[attr-defined]
        return loss


def refuse_leaks(model: Any) -> None:
    """Raise where a packed row would see the rows before it.

    Tried on the model itself where it is on its device whole; else told by the kinds of its layers.

    Raises:
        UsageError: it would.
    """
    kinds = getattr(model.config.get_text_config(), "layer_types", None) or ()
    if any(word in str(kind) for kind in kinds for word in RECURRENT) or _leaks(model):
        raise UsageError(
            _("this model's layers would let packed rows see each other, with attention {name}").format(
                name=_attention(model) or "?"
            ),
            where="packing",
            fix=_("set packing: false, or attn_implementation: flash_attention_2 where it runs"),
            kind="packing_leaks",
        )


@torch.no_grad()
def _leaks(model: Any) -> bool:
    """Whether the second of two packed rows changes with the first."""
    parameter = next(model.parameters())
    if parameter.device.type == "meta" or not parameter.numel() or type(parameter).__name__ == "DTensor":
        return False  # sharded or not loaded: its layers were looked at
    vocabulary = int(model.config.get_text_config().vocab_size)
    random = torch.Generator().manual_seed(0)
    rows = torch.randint(0, vocabulary, (3, PROBE), generator=random)
    positions = torch.arange(PROBE).repeat(2)[None].to(parameter.device)
    training = model.training
    model.eval()
    try:
        behind = [
            model(
                input_ids=torch.cat([rows[first], rows[2]])[None].to(parameter.device),
                position_ids=positions,
                use_cache=False,
            )
            .logits[0, PROBE:]
            .float()
            for first in (0, 1)
        ]
    finally:
        model.train(training)
    tolerance = 1e-4 if parameter.dtype == torch.float32 else 2e-2
    return bool((behind[0] - behind[1]).abs().max() > tolerance * behind[0].abs().max().clamp(min=1e-6))
