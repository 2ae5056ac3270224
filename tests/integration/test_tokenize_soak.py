"""Two hundred thousand conversations are prepared in bounded memory, split and packed."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from engine.files import read_json
from tests.support import tokenizing

pytestmark = [pytest.mark.heavy, pytest.mark.soak, pytest.mark.timeout(3000)]

ROWS = 200_000
LIMIT = 1.5e9


def test_memory_is_bounded(tmp_path: Path) -> None:
    chance = random.Random(1)
    model = tokenizing.make_model(
        tmp_path / "model",
        tokenizing.bpe([tokenizing.text(chance, 30) for _ in range(400)]),
        tokenizing.CHATML,
        None,
        "<|im_end|>",
    )
    (model / "config.json").write_text("{}")
    some = [json.dumps(row["messages"], ensure_ascii=False) for row in tokenizing.random_rows(chance, 2000, longest=12)]
    path = tmp_path / "rows.jsonl"
    with open(path, "w", encoding="utf-8") as file:
        for number in range(ROWS):
            file.write(f'{{"id": {number}, "messages": {some[number % len(some)]}}}\n')
    job = tokenizing.job_of(
        tmp_path,
        path,
        model,
        packing=True,
        max_length=512,
        test_size=0.05,
        dataset_num_proc=2,
        truncation_mode="keep_start",
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "engine.train.tokenize", str(job.run.path)], env={**os.environ, "PYTHONSAFEPATH": "1"}
    )
    highest = 0
    own = psutil.Process(process.pid)
    while process.poll() is None:
        total = 0
        try:
            for one in (own, *own.children(recursive=True)):
                total += one.memory_info().rss
        except psutil.Error:
            pass
        highest = max(highest, total)
        time.sleep(0.1)
    assert process.returncode == 0
    document = read_json(job.run.data / "data.json")
    assert document["train"]["rows"] + document["eval"]["rows"] == ROWS and document["eval"]["rows"] == 10_000
    assert document["train"]["fill"] > 0.99
    print(json.dumps({"figure": "peak of all processes, mapped files and all, GB", "value": round(highest / 1e9, 2)}))
    assert highest < LIMIT
