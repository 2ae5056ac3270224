"""Rows a second of batched answers against a loop of `generate`, and the memory of a long row's loss.

    python tests/bench/bench_evaluate.py [ROWS]

One JSON line a figure. The built-in model, fp32, on the CPU; prompts of mixed length, answers of at most 48 tokens.
"""

from __future__ import annotations

import json
import random
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from engine.evaluate import generate, loss
from engine.evaluate.rows import regression
from engine.train import builtin
from engine.workspace import Workspace

NEW = 48


def say(**figure: Any) -> None:
    print(json.dumps(figure), flush=True)


def texts(count: int, longest: int) -> list[str]:
    """Prompts of the built-in sets, in three languages; every fifth is some of them in a row, up to `longest`."""
    rng = random.Random(0)
    support = [json.loads(line)["messages"][0]["content"] for line in builtin.dataset_path("builtin:support").open()]
    known = [row.prompt for row in regression()] + rng.sample(support, 200)
    found = [rng.choice(known) for _row in range(count)]
    return [" ".join(rng.choices(known, k=rng.randint(2, longest))) if n % 5 == 0 else t for n, t in enumerate(found)]


def speed(model: Any, tokenizer: Any, count: int, longest: int) -> None:
    prompts = []
    for text in texts(count, longest):
        message = [{"role": "user", "content": text}]
        prompts.append(
            tokenizer.apply_chat_template(message, add_generation_prompt=True, return_dict=True)["input_ids"]
        )
    stop, pad = [tokenizer.eos_token_id], tokenizer.pad_token_id
    batched: dict[int, list[int]] = {}
    begin = time.monotonic()
    generate.answer(model, prompts, max_new_tokens=NEW, stop=stop, pad=pad, done=batched.__setitem__)
    ours = time.monotonic() - begin
    begin = time.monotonic()
    alone = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        out = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NEW,
            eos_token_id=stop, pad_token_id=pad, use_cache=True,
        )  # fmt: skip
        alone.append(generate.cut(out[0, len(prompt) :].tolist(), stop))
    loop = time.monotonic() - begin
    say(
        figure="answers",
        rows=count,
        prompt_tokens=[min(map(len, prompts)), max(map(len, prompts))],
        batched_rows_per_s=round(count / ours, 2),
        loop_rows_per_s=round(count / loop, 2),
        ratio=round(loop / ours, 2),
        same_tokens=sum(batched[n] == alone[n] for n in range(count)),
    )


def memory() -> None:
    """The loss of a row of 4,096 tokens under a vocabulary of 128,000: all its logits are 2.1 GB in fp32."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=128_000, hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=4096, dtype="float32",
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ids = list(range(1, 4097))
    loss.score(model, [(ids, ids)], None, lambda _n, _s: None)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    say(figure="loss_memory", grown_mb=round(grown / 1e6), all_logits_mb=round(4096 * 128_000 * 4 / 1e6))


def main() -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        home = sys.argv[2] if len(sys.argv) > 2 else folder
        path = builtin.model_path("builtin:tiny", Workspace(Path(home)).prepare().cache_dir)
        tokenizer = AutoTokenizer.from_pretrained(path)
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        memory()
        for longest in (5, 30):
            speed(model, tokenizer, int(sys.argv[1]) if len(sys.argv) > 1 else 200, longest)


if __name__ == "__main__":
    main()
