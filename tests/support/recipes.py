"""Recipes written for a test, beside a stand-in model and a few rows of data."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from engine import recipe
from engine.findings import Finding
from engine.recipe.model import Loaded

BASE = "model_name_or_path: ./model\ndataset_path: ./train.jsonl\n"
FIRST = BASE.count("\n") + 1  # the line on which a body begins
ROW = {"messages": [{"role": "user", "content": "How long?"}, {"role": "assistant", "content": "Eight minutes."}]}


def furnish(folder: Path) -> None:
    """Put a model folder (no weights) and data into `folder`."""
    model = folder / "model"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps({"model_type": "llama", "max_position_embeddings": 2048}))
    (model / "tokenizer.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"weights")
    (folder / "train.jsonl").write_text((json.dumps(ROW) + "\n") * 3)


def load(folder: Path, body: str = "", overrides: Iterable[str] = (), base: str = BASE) -> Loaded:
    """Load a recipe whose own keys begin on line `FIRST`."""
    path = folder / "recipe.yaml"
    path.write_text(base + body)
    return recipe.load(path, list(overrides))


def seen(findings: Iterable[Finding]) -> list[tuple[str, str, list[int]]]:
    """Findings as (level, kind, lines)."""
    return [(finding.level, finding.kind, finding.lines) for finding in findings]


def only(findings: Iterable[Finding], kind: str) -> Finding:
    """The one finding of a kind."""
    (found,) = [finding for finding in findings if finding.kind == kind]
    return found
