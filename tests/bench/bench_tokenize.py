"""Preparing conversations: ours against `datasets.map`, row-wise and batched, and the bare tokenizer.

    OMP_NUM_THREADS=1 PYTHONPATH=. .venv/bin/python tests/bench/bench_tokenize.py [rows] [rounds]

Each alternative is a process of its own with the same file, tokenizer and template, on two cores; they take turns, and
a machine that others load moves them alike. Wall time and processor time (of the process and its children) are
compared by their medians; the memory is the largest sum of the resident pages of all its processes, mapped files and
all. With `only` before the numbers nothing but ours is run.
"""

from __future__ import annotations

import json
import math
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from engine.files import write_json

# bare: the Rust tokenizer on texts that are rendered already; called: the same through transformers' own call
KINDS = ("ours", "map", "map_batched", "bare", "called")
CORES = 2


def make_rows(path: Path, count: int) -> None:
    """Conversations of one to three exchanges, about 180 tokens at the median, in words of a made-up language."""
    chance = random.Random(0)
    words = [
        "".join(chance.choice("abcdefghijklmnoprstuvwz") for _ in range(chance.randint(2, 9))) for _ in range(6000)
    ]
    weights = [1 / (n + 3) for n in range(len(words))]
    pool = chance.choices(words, weights, k=400_000)
    with open(path, "w") as file:
        for _ in range(count):
            size = min(1200, max(8, round(math.exp(chance.gauss(math.log(140), 0.9)))))
            turns = chance.randint(1, 3)
            messages = []
            for _turn in range(turns):
                for role, share in (("user", 0.35), ("assistant", 0.65)):
                    start = chance.randrange(len(pool) - 1300)
                    text = " ".join(pool[start : start + max(1, round(size * share / turns))])
                    messages.append({"role": role, "content": text})
            file.write(json.dumps({"messages": messages}) + "\n")


def make_model(folder: Path, rows: Path) -> None:
    """A byte-level BPE of 32,000 words, learned from the rows, and the template of Qwen3 in TRL's training form."""
    import trl
    from tokenizers import ByteLevelBPETokenizer

    bpe = ByteLevelBPETokenizer()
    with open(rows) as file:
        sample = [
            turn["content"]
            for line, _n in zip(file, range(20_000), strict=False)
            for turn in json.loads(line)["messages"]
        ]
    bpe.train_from_iterator(sample, vocab_size=32_000, show_progress=False)
    bpe.add_special_tokens(
        ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>"]
    )
    folder.mkdir()
    bpe.save(str(folder / "tokenizer.json"))
    template = (Path(trl.__file__).parent / "chat_templates" / "qwen3_training.jinja").read_text()
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": template}))
    (folder / "config.json").write_text('{"model_type": "qwen3"}')


def _ours(work: Path) -> int:
    from engine.train import job as jobs
    from engine.train.events import Events
    from engine.train.rank import Rank
    from engine.train.tokenize.prepare import prepare
    from engine.workspace import RunFolder

    run = RunFolder(work / "home" / "runs" / f"run-{os.getpid()}")
    run.path.mkdir(parents=True)
    recipe = {
        "model_name_or_path": str(work / "model"), "dataset_path": str(work / "rows.jsonl"), "test_size": 0.0,
        "assistant_only_loss": True, "max_length": 2048, "dataset_num_proc": CORES, "seed": int(time.time_ns() % 10**6),
    }  # fmt: skip
    write_json(run.resolved, {"format": 1, "run": run.name, "recipe": recipe, "origin": {}})
    document = prepare(jobs.load(Rank(run, 0, 0, 1, 1, None)), Events(None, 1))
    assert document["encoder"] == "workers" and not document["cached"]
    return int(document["train"]["tokens"])


def _map(work: Path, *, batched: bool) -> int:
    import datasets
    from transformers import AutoTokenizer

    datasets.disable_progress_bars()
    tokenizer = AutoTokenizer.from_pretrained(str(work / "model"))
    cache = tempfile.mkdtemp(dir=work)
    rows = datasets.load_dataset("json", data_files=str(work / "rows.jsonl"), split="train", cache_dir=cache)

    def encode(example: dict[str, Any]) -> dict[str, Any]:
        found = tokenizer.apply_chat_template(
            example["messages"], return_dict=True, return_assistant_tokens_mask=True, truncation=True, max_length=2048
        )
        ids, masks = found["input_ids"], found["assistant_masks"]
        if not batched:
            ids, masks = [ids], [masks]
        labels = [[i if m else -100 for i, m in zip(*pair, strict=True)] for pair in zip(ids, masks, strict=True)]
        return {"input_ids": ids, "labels": labels} if batched else {"input_ids": ids[0], "labels": labels[0]}

    ready = rows.map(encode, batched=batched, num_proc=CORES, remove_columns=rows.column_names)
    import pyarrow.compute as compute

    return int(compute.sum(compute.list_value_length(ready.data["input_ids"])).as_py())


def _bare(work: Path) -> int:
    """The tokenizer alone, on texts that are rendered already: nothing is masked, nothing written."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(work / "model" / "tokenizer.json"))
    total = 0
    with open(work / "texts.jsonl") as file:
        while texts := [json.loads(line) for _n, line in zip(range(2000), file, strict=False)]:
            total += sum(len(e.ids) for e in tokenizer.encode_batch(texts, add_special_tokens=False))
    return total


def _called(work: Path) -> int:
    """The tokenizer as transformers calls it, on the same texts."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(work / "model"))
    total = 0
    with open(work / "texts.jsonl") as file:
        while texts := [json.loads(line) for _n, line in zip(range(2000), file, strict=False)]:
            total += sum(map(len, tokenizer(texts, add_special_tokens=False)["input_ids"]))
    return total


def child(kind: str, work: Path) -> None:
    """One alternative, in a process of its own; prints its figures."""
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if kind in ("bare", "called") else "false"
    os.environ["RAYON_NUM_THREADS"] = str(CORES)
    peak = _watch_memory()
    begin = time.monotonic()
    run = {
        "ours": _ours,
        "called": _called,
        "map": lambda w: _map(w, batched=False),
        "map_batched": lambda w: _map(w, batched=True),
    }
    tokens = run.get(kind, _bare)(work)
    wall = time.monotonic() - begin
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(use.ru_utime + use.ru_stime for use in used)
    print(json.dumps({"kind": kind, "wall": wall, "cpu": cpu, "tokens": tokens, "peak_gb": max(peak, default=0) / 1e9}))


def _watch_memory() -> list[int]:
    import psutil

    peaks = [0]
    own = psutil.Process()

    def watch() -> None:
        while True:
            total = 0
            for process in (own, *own.children(recursive=True)):
                try:
                    total += process.memory_info().rss
                except psutil.Error:
                    continue
            peaks[0] = max(peaks[0], total)
            time.sleep(0.25)

    threading.Thread(target=watch, daemon=True).start()
    return peaks


def render(work: Path) -> None:
    """The texts that the bare tokenizer gets."""
    from engine.data.tokens import load

    template = load(str(work / "model")).template
    assert template is not None
    with open(work / "rows.jsonl") as file, open(work / "texts.jsonl", "w") as out:
        for line in file:
            out.write(json.dumps(template.render(json.loads(line)["messages"])[0]) + "\n")


def main(count: int = 200_000, rounds: int = 3, kinds: tuple[str, ...] = KINDS) -> None:
    """Compare all; one JSON line a figure."""
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        make_rows(work / "rows.jsonl", count)
        make_model(work / "model", work / "rows.jsonl")
        if "bare" in kinds:
            render(work)
        found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
        for turn in range(rounds):
            for kind in kinds if turn % 2 == 0 else reversed(kinds):
                done = subprocess.run(
                    [sys.executable, __file__, "--child", kind, str(work)],
                    stdout=subprocess.PIPE,
                    text=True,
                    check=True,
                )
                found[kind].append(json.loads(done.stdout.splitlines()[-1]))
                print(json.dumps(found[kind][-1]), file=sys.stderr, flush=True)
        middle = {
            k: {f: statistics.median(r[f] for r in runs) for f in ("wall", "cpu", "tokens", "peak_gb")}
            for k, runs in found.items()
        }
        assert len({middle[kind]["tokens"] for kind in kinds[:3]}) == 1
        for kind, figures in middle.items():
            rates = {"rows_per_s": round(count / figures["wall"]), "rows_per_cpu_s": round(count / figures["cpu"])}
            print(json.dumps({"kind": kind, **rates, "peak_gb": round(figures["peak_gb"], 2)}))
        for kind in kinds[1:]:
            ratio = {name: round(middle[kind][name] / middle["ours"][name], 2) for name in ("wall", "cpu")}
            print(json.dumps({"figure": f"rows/s of ours against {kind}", **ratio}))


if __name__ == "__main__":
    if "--child" in sys.argv:
        child(sys.argv[2], Path(sys.argv[3]))
    else:
        only = "only" in sys.argv
        main(*(int(word) for word in sys.argv[1:] if word != "only"), **({"kinds": KINDS[:1]} if only else {}))
