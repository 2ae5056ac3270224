"""Seconds per step: the demo recipe through the engine against a plain SFTTrainer script with the same settings.

`python tests/bench/bench_engine.py [--steps N] [--rounds N]`. Both run one process on the CPU, take turns, and are
measured alike: the time between the ends of consecutive steps, without evaluation and saves. Each round alternates
who goes first; the figures are ratios of the medians over all rounds: of wall time, and of the process's CPU time,
which a busy machine disturbs less.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from engine.files import read_json, write_json
from engine.train import builtin
from engine.train.launcher import command
from engine.workspace import RunFolder, Workspace

WARM_UP = 5
# Both sides get it (the engine as its plugin): the same clock at the same place, before anybody's callbacks.
CLOCK = """
import atexit, json, os, time
import transformers
times, original = [], transformers.trainer_callback.CallbackHandler.on_step_begin
def on_step_begin(self, args, state, control):
    times.append((time.perf_counter(), time.process_time()))
    return original(self, args, state, control)
transformers.trainer_callback.CallbackHandler.on_step_begin = on_step_begin
atexit.register(lambda: open(os.environ["BENCH_TIMES"], "w").write(json.dumps(times)))
"""

PLAIN = """
import json, sys
import bench_clock
import torch
from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer
model, data, options, lora, out = json.loads(sys.argv[1])
rows = load_dataset("json", data_files=data, split="train", cache_dir=out).train_test_split(0.05, seed=42)
trainer = SFTTrainer(
    model=AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
    args=SFTConfig(output_dir=out, use_cpu=True, bf16=False, report_to=[], disable_tqdm=True, **options),
    train_dataset=rows["train"],
    eval_dataset=rows["test"],
    processing_class=AutoTokenizer.from_pretrained(model),
    peft_config=LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear", **lora),
)
trainer.train()
"""


def main() -> int:
    """Run both sides in turns and print a JSON line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        workspace = Workspace(Path(os.environ.get("FTUI_TEST_CACHE", f"{folder}/home"))).prepare()
        model = builtin.model_path("builtin:tiny", workspace.cache_dir)
        box = Path(folder)
        (box / "bench_clock.py").write_text(CLOCK)
        (box / "plain.py").write_text(PLAIN)
        options = {
            "max_steps": arguments.steps, "per_device_train_batch_size": 16, "max_length": 256,
            "learning_rate": 1e-2, "lr_scheduler_type": "cosine", "warmup_steps": 0.05, "logging_steps": 2,
            "assistant_only_loss": True, "gradient_checkpointing": False, "seed": 42, "save_strategy": "no",
        }  # fmt: skip
        lora = {"r": 32, "lora_alpha": 64, "lora_dropout": 0.05}
        recipe = {
            **options, "model_name_or_path": str(model), "dataset_path": "builtin:support", "method": "lora",
            "device": "cpu", "test_size": 0.05, "dtype": "float32", "lora_r": 32, "lora_alpha": 64,
            "lora_dropout": 0.05, "logging_nan_inf_filter": True,
        }  # fmt: skip
        wall: dict[str, list[float]] = {"engine": [], "plain": []}
        cpu: dict[str, list[float]] = {"engine": [], "plain": []}
        for number in range(arguments.rounds):
            order = ["engine", "plain"] if number % 2 else ["plain", "engine"]
            for side in order:
                times = box / f"{side}-{number}.json"
                env = {
                    **os.environ, "BENCH_TIMES": str(times), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
                    "PYTHONPATH": folder, "HF_HUB_DISABLE_TELEMETRY": "1",
                }  # fmt: skip
                if side == "engine":
                    argv, env = _engine(box / "runs" / str(number), recipe, env)
                else:
                    data = str(builtin.dataset_path("builtin:support"))
                    settings = json.dumps([str(model), data, options, lora, f"{folder}/out-{number}"])
                    argv = [sys.executable, str(box / "plain.py"), settings]
                subprocess.run(argv, env=env, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                for (wall_a, cpu_a), (wall_b, cpu_b) in itertools.pairwise(read_json(times)[WARM_UP:]):
                    wall[side].append(wall_b - wall_a)
                    cpu[side].append(cpu_b - cpu_a)
    for name, found in (("engine_step_wall", wall), ("engine_step_cpu", cpu)):
        engine, plain = statistics.median(found["engine"]), statistics.median(found["plain"])
        figure = {"bench": name, "ratio": round(engine / plain, 4), "target": 1.03, "steps": len(found["engine"])}
        print(json.dumps({**figure, "engine_s": round(engine, 5), "plain_s": round(plain, 5)}))
    return 0


def _engine(path: Path, recipe: dict[str, Any], env: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    run = RunFolder(path)
    run.path.mkdir(parents=True)
    write_json(run.resolved, {"format": 1, "recipe": recipe})
    return command(run, python=sys.executable, nproc=1, base={**env, "FTUI_ENGINE_PLUGIN": "bench_clock"})


if __name__ == "__main__":
    sys.exit(main())
