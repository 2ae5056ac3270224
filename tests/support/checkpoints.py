"""Checkpoints as the trainer leaves them, made without torch."""

from __future__ import annotations

import io
import json
import math
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

WIDTH = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "U8": 1, "BOOL": 1}
LORA = "base_model.model.model.layers.0.self_attn.{}_proj.lora_{}.weight"


def safetensors(tensors: dict[str, tuple[str, list[int], bytes]]) -> bytes:
    """A file of the given tensors: name -> (type, shape, bytes)."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, shape, data) in tensors.items():
        assert len(data) == math.prod(shape) * WIDTH[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    return with_header(json.dumps(header).encode(), b"".join(data for _d, _s, data in tensors.values()))


def with_header(header: bytes, data: bytes) -> bytes:
    """A file with exactly this header and these data."""
    return struct.pack("<Q", len(header)) + header + data


def floats(*values: float) -> bytes:
    """fp32 numbers."""
    return struct.pack(f"<{len(values)}f", *values)


def adapter(rank: int = 2, width: int = 4, *, zero_b: bool = False) -> dict[str, tuple[str, list[int], bytes]]:
    """A LoRA adapter of two modules."""
    numbers = floats(*(0.5 for _n in range(rank * width)))
    tensors = {}
    for module in ("q", "v"):
        tensors[LORA.format(module, "A")] = ("F32", [rank, width], numbers)
        tensors[LORA.format(module, "B")] = ("F32", [width, rank], bytes(len(numbers)) if zero_b else numbers)
    return tensors


def pickled(value: Any) -> bytes:
    """As torch.save pickles."""
    return pickle.dumps(value, protocol=2)


def torch_zip(data: bytes, storages: dict[str, bytes] | None = None, root: str = "archive") -> bytes:
    """What torch.save writes: a stored zip with the pickle and the numbers."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(f"{root}/data.pkl", data)
        for key, value in (storages or {}).items():
            archive.writestr(f"{root}/data/{key}", value)
        archive.writestr(f"{root}/version", "3\n")
    return stream.getvalue()


def write_checkpoint(folder: Path, step: int, *, ranks: int = 1) -> Path:
    """A LoRA checkpoint of one process, or of several."""
    folder.mkdir(parents=True)
    (folder / "adapter_model.safetensors").write_bytes(safetensors(adapter()))
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2, "target_modules": ["q_proj"]}))
    (folder / "optimizer.pt").write_bytes(torch_zip(pickled({"state": {0: {"step": step}}, "param_groups": []})))
    (folder / "scheduler.pt").write_bytes(torch_zip(pickled({"last_epoch": step})))
    (folder / "training_args.bin").write_bytes(torch_zip(pickled({"learning_rate": 1e-4})))
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step, "log_history": [], "max_steps": 100}))
    for name in ["rng_state.pth"] if ranks == 1 else [f"rng_state_{rank}.pth" for rank in range(ranks)]:
        (folder / name).write_bytes(torch_zip(pickled({"python": (3, (1, 2), None)})))
    return folder
