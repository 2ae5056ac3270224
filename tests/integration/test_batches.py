"""Rows in batches: packed ones that do not see each other, and the order of those that are padded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, Lfm2Config, LlamaConfig, MistralConfig, Qwen3Config

from engine.errors import UsageError
from engine.train import batches
from engine.train.batches import USEFUL, LengthGrouped, PackedRows, refuse_leaks

pytestmark = pytest.mark.heavy

SHAPE = {
    "vocab_size": 128, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "pad_token_id": 0, "initializer_range": 0.2,
}  # fmt: skip


def model(kind: type[Any], attention: str, **more: Any) -> Any:
    torch.manual_seed(0)
    config = kind(**SHAPE, **more)
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=torch.float32).eval()


def rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    random = np.random.default_rng(seed)
    found = []
    for length in random.integers(1, 30, count).tolist():
        ids = random.integers(1, 128, length)
        labels = np.where(random.random(length) < 0.7, ids, -100)
        labels[0] = -100  # as the tokenizing writes it
        found.append({"input_ids": ids.tolist(), "labels": labels.tolist()})
    return found


def packed(parts: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return [
        {
            "input_ids": [i for row in part for i in row["input_ids"]],
            "labels": [i for row in part for i in row["labels"]],
            "seq_lengths": [len(row["input_ids"]) for row in part],
        }
        for part in parts
    ]


def losses(network: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """The loss of each trained token, in order."""
    inputs = {key: value for key, value in batch.items() if key not in (USEFUL, "labels")}
    with torch.no_grad():
        logits = network(**inputs, use_cache=False).logits[:, :-1]
    targets = batch["labels"][:, 1:]
    each = torch.nn.functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none", ignore_index=-100)
    return each[targets != -100]


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize(
    ("kind", "more"), [(Qwen3Config, {}), (LlamaConfig, {}), (MistralConfig, {"sliding_window": 8})]
)
def test_each_token_has_the_loss_that_it_has_alone(kind: Any, more: dict[str, Any], attention: str) -> None:
    network = model(kind, attention, **more)
    every = rows(12)
    together = losses(network, PackedRows(0)(packed([every[:5], every[5:6], every[6:]])))
    alone = torch.cat([losses(network, PackedRows(0)([row])) for row in every])
    theirs = torch.cat(
        [
            losses(network, {"input_ids": torch.tensor([row["input_ids"]]), "labels": torch.tensor([row["labels"]])})
            for row in every
        ]
    )
    assert len(together) == len(theirs) > 50
    assert (together - theirs).abs().max() < 1e-5 and (alone - theirs).abs().max() < 1e-5


def test_a_batch_says_how_many_tokens_are_useful_and_its_pads_see_nothing() -> None:
    batch = PackedRows(0, pad_to_multiple_of=16)(packed([rows(4)[:2], rows(9)[2:9]]))
    lengths = [sum(len(row["input_ids"]) for row in part) for part in (rows(4)[:2], rows(9)[2:9])]
    assert batch[USEFUL] == sum(lengths) and batch["input_ids"].shape[1] % 16 == 0
    shorter = int(np.argmin(lengths))
    assert (batch["position_ids"][shorter, min(lengths) :] == 0).all()
    assert (batch["labels"][shorter, min(lengths) :] == -100).all()


def test_leaks_between_packed_rows_are_refused() -> None:
    from transformers import AttentionInterface

    for attention in ("eager", "sdpa"):
        refuse_leaks(model(Qwen3Config, attention))

    def blind(module: Any, query: Any, key: Any, value: Any, mask: Any, **_more: Any) -> tuple[Any, None]:
        groups = query.shape[1] // key.shape[1]
        key, value = (part.repeat_interleave(groups, 1) for part in (key, value))
        found = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return found.transpose(1, 2), None

    AttentionInterface.register("blind", blind)
    with pytest.raises(UsageError, match="see each other"):
        refuse_leaks(model(Qwen3Config, "blind"))
    short_memory = model(Lfm2Config, "sdpa", layer_types=["conv", "full_attention"])
    assert batches._leaks(short_memory)
    with pytest.raises(UsageError, match="see each other"):
        refuse_leaks(short_memory)


def test_rows_of_like_length_lie_together_and_all_lengths_are_mixed() -> None:
    random = np.random.default_rng(0)
    sizes = np.minimum(2048, np.exp(random.normal(np.log(180), 0.9, 5003)).astype(int))
    sampler = LengthGrouped(sizes, batch_size=4, world_size=2, seed=7)
    first, again = list(sampler), list(sampler)
    assert sorted(first) == list(range(5003)) == sorted(again) and first == again and len(sampler) == 5003
    sampler.set_epoch(1)
    assert list(sampler) != first

    def padded(order: list[int], size: int) -> float:
        slices = [sizes[order[start : start + size]] for start in range(0, len(order), size)]
        return sum(part.max() * len(part) for part in slices) / sizes.sum()

    assert padded(first, 4) < 1.06 and padded(first, 8) < 1.08 < 1.5 < padded(list(range(5003)), 4)
    assert sizes[first[:8]].max() == sizes.max()
    # Over the epoch the lengths do not drift: each tenth of it has about the mean of all.
    tenths = [sizes[first[start : start + 500]].mean() for start in range(0, 5000, 500)]
    assert max(tenths) < 1.6 * sizes.mean() and min(tenths) > 0.6 * sizes.mean()


def trainer(folder: Path, dataset: Dataset, **options: Any) -> Any:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast
    from trl import SFTConfig, SFTTrainer

    class Trainer(batches.Batches, SFTTrainer):
        pass

    words = Tokenizer(WordLevel({str(n): n for n in range(128)}, unk_token="1"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="0", eos_token="2")
    arguments = SFTConfig(
        output_dir=str(folder), use_cpu=True, bf16=False, report_to=[], disable_tqdm=True, max_length=64,
        per_device_train_batch_size=2, max_steps=4, logging_steps=1, save_strategy="no", learning_rate=0.0,
        dataset_kwargs={"skip_prepare_dataset": True}, **options,
    )  # fmt: skip
    return Trainer(
        model=model(Qwen3Config, "sdpa").train(), args=arguments, train_dataset=dataset, eval_dataset=dataset,
        processing_class=tokenizer,
    )  # fmt: skip


def test_the_trainer_takes_packed_rows_and_counts_their_tokens(tmp_path: Path) -> None:
    parts = [rows(6, seed)[:3] for seed in range(8)]
    lengths = [sum(len(row["input_ids"]) for row in part) for part in parts]
    ours = trainer(tmp_path, Dataset.from_list(packed(parts)), packing=True)
    assert isinstance(ours.data_collator, PackedRows)
    ours.train()
    (last,) = [entry for entry in ours.state.log_history if entry.get("step") == 4 and "num_tokens" in entry]
    assert last["num_tokens"] == sum(lengths)
    together = ours.evaluate()["eval_loss"]
    apart = trainer(tmp_path, Dataset.from_list([row for part in parts for row in part]))
    count, total = 0, 0.0
    for part in parts:
        for row in part:
            values = losses(apart.model.eval(), PackedRows(0)([row]))
            count, total = count + len(values), total + float(values.sum())
    ours.args.per_device_eval_batch_size = len(parts)
    assert abs(float(ours.evaluate()["eval_loss"]) - total / count) < 1e-5 and together > 0


def test_the_trainer_groups_by_length_when_asked(tmp_path: Path) -> None:
    every = rows(40)
    ours = trainer(tmp_path, Dataset.from_list(every), train_sampling_strategy="group_by_length")
    sampler = ours.get_train_dataloader().batch_sampler
    order = list(sampler)
    assert sorted(index for batch in order for index in batch) == list(range(40))
    widths = sum(max(len(every[i]["input_ids"]) for i in batch) * len(batch) for batch in order)
    assert widths < 1.1 * sum(len(row["input_ids"]) for row in every)
