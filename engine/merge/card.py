"""Where a merged model comes from: the card for people, and the same for programs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import yaml

from engine.files import read_json, write_atomic, write_json
from engine.merge.plan import Plan
from engine.merge.source import Source
from engine.text import _

PROVENANCE = "provenance.json"
_LICENCE_KEYS = ("license", "license_name", "license_link")
_FRONT_LIMIT = 64 * 1024
_SETTINGS = (
    "method", "task", "learning_rate", "lr_scheduler_type", "num_train_epochs", "max_steps", "global_batch_size",
    "max_length", "packing", "load_in_4bit", "bnb_4bit_quant_type", "seed",
)  # fmt: skip


def provenance(plan: Plan, source: Source, base_name: str, dtype: str) -> dict[str, Any]:
    """What the merged model was made of."""
    config = plan.adapter.config
    adapter = {key: config.get(key) for key in ("r", "lora_alpha", "use_rslora", "use_dora", "modules_to_save")}
    document: dict[str, Any] = {
        "format": 1,
        "time": time.time(),
        "base": {"name": base_name, "path": str(plan.base.folder.absolute())},
        "adapter": {"path": str(source.folder.absolute()), "step": source.step, **adapter},
        "dtype": dtype,
        "tensors_merged": plan.merged,
    }
    if source.run is not None:
        environment = read_json(source.run.environment)
        environment = environment if isinstance(environment, dict) else {}
        recipe = source.run.read_resolved().get("recipe") or {}
        document["base"]["name"] = recipe.get("model_name_or_path") or base_name
        document["run"] = {
            "name": source.run.name,
            "recipe_sha256": environment.get("recipe_sha256"),
            "data_sha256": environment.get("data_sha256"),
            "sources": environment.get("sources"),
            "versions": environment.get("versions"),
            "recipe": {key: recipe[key] for key in _SETTINGS if recipe.get(key) is not None},
            "metrics": source.metrics,
        }
    return document


def write(folder: Path, plan: Plan, document: dict[str, Any]) -> None:
    """Write README.md (a model card) and provenance.json."""
    write_json(folder / PROVENANCE, document)
    front: dict[str, Any] = {
        "base_model": document["base"]["name"],
        "library_name": "transformers",
        **_licence(plan.base.folder),
        "tags": ["merged", "lora"],
    }
    lines = ["---", yaml.safe_dump(front, sort_keys=False, allow_unicode=True).strip(), "---", ""]
    lines += [f"# {_('Merged model')}", "", _("An adapter merged into its base model. Where it comes from:"), ""]
    lines += [f"- {name}: {value}" for name, value in _facts(document) if value not in (None, "", [], {})]
    write_atomic(folder / "README.md", ("\n".join(lines) + "\n").encode())


def _facts(document: dict[str, Any]) -> list[tuple[str, Any]]:
    adapter, run = document["adapter"], document.get("run") or {}
    recipe = ", ".join(f"{key} {value}" for key, value in (run.get("recipe") or {}).items())
    metrics = run.get("metrics") or {}
    scores = ", ".join(
        f"{key} {value:.4g}"
        for key, value in metrics.items()
        if key.endswith("loss") and isinstance(value, int | float)
    )
    return [
        (_("base"), f"`{document['base']['name']}`"),
        (_("adapter"), _("rank {r}, alpha {alpha}").format(r=adapter["r"], alpha=adapter["lora_alpha"])),
        (_("step"), adapter["step"]),
        (_("weights"), document["dtype"]),
        (_("run"), run.get("name")),
        (_("recipe"), recipe),
        (_("recipe, SHA-256"), run.get("recipe_sha256")),
        (_("data, SHA-256"), run.get("data_sha256")),
        (_("scores"), scores),
    ]


def _licence(base: Path) -> dict[str, str]:
    """What the base's card says of its licence: a tuned model keeps it."""
    try:
        with open(base / "README.md", encoding="utf-8", errors="replace") as file:
            text = file.read(_FRONT_LIMIT)
        if not text.startswith("---"):
            return {}
        front = yaml.safe_load(text[3:].partition("\n---")[0])
    except (OSError, yaml.YAMLError, RecursionError, ValueError):
        return {}
    if not isinstance(front, dict):
        return {}
    return {key: front[key] for key in _LICENCE_KEYS if isinstance(front.get(key), str)}
