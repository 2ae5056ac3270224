"""`ftui merge` as a user runs it: the child, the verification, kills, a full disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.support import merge_files as files
from tests.support.merge_files import Q, adapter_tensors, base_tensors, write_adapter, write_base
from tests.support.models import make_model

pytestmark = pytest.mark.heavy
FTUI = [sys.executable, "-P", "-m", "tui"]


def ftui(*argv: str | Path, **options: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*FTUI, *map(str, argv)], capture_output=True, stdin=subprocess.DEVNULL, **options)  # type: ignore[call-overload, no-any-return]


def loadable(folder: Path) -> Path:
    """A base that transformers can load, with a tokenizer."""
    size = {
        "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 4, "max_position_embeddings": 64, "vocab_size": 300,
    }  # fmt: skip
    tensors = base_tensors() | {
        "lm_head.weight": files.numbers(300, 8),
        "model.embed_tokens.weight": files.numbers(300, 8),
    }
    for name, shape in {
        "self_attn.k_proj": (4, 8), "self_attn.o_proj": (8, 8), "mlp.gate_proj": (16, 8), "mlp.up_proj": (16, 8),
        "mlp.down_proj": (8, 16), "input_layernorm": (8,), "post_attention_layernorm": (8,),
    }.items():  # fmt: skip
        tensors[f"model.layers.0.{name}.weight"] = files.numbers(*shape)
    files.write_shards(folder, tensors, **size)
    make_model(folder.with_name("words"))
    for path in folder.with_name("words").iterdir():
        path.rename(folder / path.name)
    (folder / "LICENSE").write_text("Apache-2.0")
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n# Base\n")
    return folder


def test_a_verified_model_and_its_papers(tmp_path: Path) -> None:
    loadable(tmp_path / "base")
    write_adapter(tmp_path / "adapter", base_model_name_or_path="base")
    done = ftui("merge", tmp_path / "adapter", "--out", tmp_path / "out", "--json")
    assert done.returncode == 0, done.stderr.decode()
    document = json.loads(done.stdout)
    assert document["verified"] and document["max_abs_diff"] == 0 and document["tensors_merged"] == 1
    assert document["logits"]["passed"] and document["logits"]["dtype"] == "float32"
    assert document["checked"]["equal"] == document["checked"]["tensors"] == len(base_tensors()) + 7
    assert 50e6 < document["peak_rss_bytes"] < 1e9
    merged = {
        name: value for path in (tmp_path / "out").glob("*.safetensors") for name, value in load_file(path).items()
    }
    tensors = adapter_tensors()
    a, b = (tensors[f"base_model.model.{Q}.lora_{part}.weight"] for part in "AB")
    np.testing.assert_allclose(merged[f"{Q}.weight"], base_tensors()[f"{Q}.weight"] + b @ a * 2, rtol=1e-5, atol=1e-6)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == merged.keys()
    assert "license: apache-2.0" in (tmp_path / "out" / "README.md").read_text()
    assert (tmp_path / "out" / "LICENSE").exists() and (tmp_path / "out" / "tokenizer.json").exists()
    assert json.loads((tmp_path / "out" / "provenance.json").read_text())["adapter"]["r"] == 4
    assert sorted(path.name for path in tmp_path.iterdir() if path.name not in ("home", "ft", "words")) == [
        "adapter",
        "base",
        "out",
    ]


def test_weights_that_are_not_numbers_are_not_kept(tmp_path: Path) -> None:
    write_base(tmp_path / "base")
    tensors = adapter_tensors()
    tensors[f"base_model.model.{Q}.lora_B.weight"][0, 0] = np.nan
    write_adapter(tmp_path / "adapter", tensors)
    done = ftui("merge", tmp_path / "adapter", "--out", tmp_path / "out", "--json", "--skip-logits")
    document = json.loads(done.stdout)
    assert done.returncode == 1 and not document["verified"]
    assert next(f["kind"] for f in document["findings"] if f["level"] == "error") == "non_finite_weights"
    assert not (tmp_path / "out").exists() and not (tmp_path / ".merge-out").exists()


def test_a_wrong_result_is_caught_and_not_kept(tmp_path: Path) -> None:
    """The training Python is one whose arithmetic has gone wrong: the check reads the files and says so."""
    write_base(tmp_path / "base")
    write_adapter(tmp_path / "adapter")
    python = tmp_path / "python"
    python.write_text(
        f"#!{sys.executable} -P\nfrom engine.merge import arithmetic\nright = arithmetic._delta\n"
        "arithmetic._delta = lambda *args: right(*args) * 1.01\nfrom engine.merge.__main__ import main\n"
        "raise SystemExit(main())\n"
    )
    python.chmod(0o755)
    env = {**os.environ, "FTUI_PYTHON": str(python)}
    done = ftui("merge", tmp_path / "adapter", "--out", tmp_path / "out", "--json", "--skip-logits", env=env)
    document = json.loads(done.stdout)
    assert done.returncode == 4 and not document["verified"] and document["max_abs_diff"] > 0
    assert [f["kind"] for f in document["findings"]] == ["verification_failed"]
    assert not (tmp_path / "out").exists() and not (tmp_path / ".merge-out").exists()


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    """A limit on the size of files stands in for the disk: the write fails in the middle of a shard."""
    write_base(tmp_path / "base", {**base_tensors(), "model.big.weight": files.numbers(1024, 1024)})
    write_adapter(tmp_path / "adapter")
    limited = ["bash", "-c", 'ulimit -f 2000; exec "$@"', "bash", *FTUI]
    argv = [*limited, "merge", str(tmp_path / "adapter"), "--out", str(tmp_path / "out"), "--json", "--skip-logits"]
    done = subprocess.run(argv, capture_output=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 3, done.stdout + done.stderr
    assert json.loads(done.stdout)["error"]["kind"] == "disk_full"
    assert not (tmp_path / "out").exists() and not (tmp_path / ".merge-out").exists()


def test_a_killed_merge_leaves_no_model_and_a_rerun_completes(tmp_path: Path) -> None:
    write_base(tmp_path / "base")
    write_adapter(tmp_path / "adapter")
    argv = ["merge", str(tmp_path / "adapter"), "--out", str(tmp_path / "out"), "--skip-logits"]
    process = subprocess.Popen([*FTUI, *argv], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (tmp_path / ".merge-out" / "config.json").exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "out").exists() and (tmp_path / ".merge-out").exists()
    done = ftui(*argv)
    assert done.returncode == 0, done.stderr.decode()
    assert (tmp_path / "out" / "model.safetensors").exists() and not (tmp_path / ".merge-out").exists()
