"""The exported script runs without this program, and trains as this program would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine import recipe
from engine.interop.exported import export
from engine.train import builtin
from engine.workspace import Workspace
from tests.support.train import tiny_model

pytestmark = pytest.mark.heavy


def test_exported_script_trains(tmp_path: Path, tiny_home: Workspace) -> None:
    model = tiny_model(tiny_home)
    rows = builtin.dataset_path("builtin:support")
    path = tmp_path / "mine.yaml"
    path.write_text(
        f"model_name_or_path: {model}\ndataset_path: {rows}\nmethod: lora\nmax_steps: 2\nlogging_steps: 1\n"
        "global_batch_size: 2\nmax_length: 128\ndevice: cpu\neval_strategy: 'no'\nsave_strategy: 'no'\n"
        "output_dir: out\n"
    )
    loaded = recipe.load(path)
    files = export(loaded, recipe.resolve(loaded, num_gpus=0), "trl").files
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "out/adapter_model.safetensors").is_file()
