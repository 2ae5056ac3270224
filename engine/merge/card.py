"""Where a merged model comes from: the card for people, and the same for programs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import yaml

from engine.evaluate import gate
from engine.files import read_json, write_atomic, write_json
from engine.merge.license import Terms
from engine.merge.plan import Plan
from engine.merge.source import Source
from engine.text import _
from engine.workspace import RunFolder

PROVENANCE = "provenance.json"
_SETTINGS = (
    "method", "task", "learning_rate", "lr_scheduler_type", "num_train_epochs", "max_steps", "global_batch_size",
    "max_length", "packing", "load_in_4bit", "bnb_4bit_quant_type", "seed",
)  # fmt: skip


def provenance(plan: Plan, source: Source, base_name: str, dtype: str, terms: Terms) -> dict[str, Any]:
    """What the merged model was made of, how it was judged, and under which license it stands."""
    config = plan.adapter.config
    adapter = {key: config.get(key) for key in ("r", "lora_alpha", "use_rslora", "use_dora", "modules_to_save")}
    document: dict[str, Any] = {
        "format": 1,
        "time": time.time(),
        "base": {"name": base_name, "path": str(plan.base.folder.absolute())},
        "adapter": {"path": str(source.folder.absolute()), "step": source.step, **adapter},
        "dtype": dtype,
        "tensors_merged": plan.merged,
        "quantized_base": plan.quantized,
        "license": terms.to_json(),
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
        document["evaluation"] = evaluation(source.run, source.step)
    return document


def evaluation(run: RunFolder, step: int | None) -> dict[str, Any] | None:
    """What the newest evaluation of a step found: metrics of base and tuned model, and the gates' word."""
    report = gate.last(run, step)
    if report is None:
        return None
    metrics = [entry for entry in report.get("metrics") or [] if isinstance(entry, dict)]
    return {
        "time": report.get("time"),
        "step": report.get("step"),
        "passed": report.get("passed"),
        "gates": [{key: one.get(key) for key in ("expr", "value", "limit", "passed")} for one in _gates(report)],
        "metrics": [{key: entry.get(key) for key in ("name", "set", "rows", "base", "tuned")} for entry in metrics],
    }


def _gates(report: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in report.get("gates") or [] if isinstance(one, dict)]


def write(folder: Path, document: dict[str, Any]) -> None:
    """Write README.md (a model card), provenance.json, and the NOTICE that a license asks for where there is none."""
    write_json(folder / PROVENANCE, document)
    terms = document["license"]
    if terms["notice"] and not any((folder / name).exists() for name in ("NOTICE", "NOTICE.txt", "Notice")):
        write_atomic(folder / "NOTICE", (terms["notice"] + "\n").encode())
    front: dict[str, Any] = {
        "base_model": document["base"]["name"],
        "library_name": "transformers",
        **terms["front"],
        "tags": ["merged", "lora"],
    }
    lines = ["---", yaml.safe_dump(front, sort_keys=False, allow_unicode=True).strip(), "---", ""]
    lines += [f"# {_('Merged model')}", ""]
    if terms["shows"]:
        lines += [f"**{terms['shows']}**", ""]
    lines += [_("An adapter merged into its base model. Where it comes from:"), ""]
    lines += [f"- {name}: {value}" for name, value in _facts(document) if value not in (None, "", [], {})]
    lines += _scores(document.get("evaluation"))
    lines += ["", f"## {_('License')}", "", _license_line(terms), ""]
    lines += [f"- {duty}" for duty in _duties(terms)]
    write_atomic(folder / "README.md", ("\n".join(lines).rstrip() + "\n").encode())


def _license_line(terms: dict[str, Any]) -> str:
    if terms["family"] == "unknown":
        return _("Nothing that came with the base tells its license. Find it before you pass the model on.")
    return _("That of the base: {license}. Whoever passes the model on has to:").format(license=terms["id"])


def _duties(terms: dict[str, Any]) -> list[str]:
    lines = [_('show "{text}" prominently').format(text=terms["shows"])] if terms["shows"] else []
    if terms["prefix"]:
        lines.append(_('give it a name that begins with "{prefix}"').format(prefix=terms["prefix"]))
    return lines + list(terms["duties"])


def _scores(found: dict[str, Any] | None) -> list[str]:
    """The evaluation as a table."""
    if found is None:
        return []
    lines = ["", f"## {_('Evaluation')}", ""]
    if found["passed"] is not None:
        gates = ", ".join(f"`{one['expr']}`" for one in found["gates"])
        lines += [(_("Its gates passed: {gates}") if found["passed"] else _("Its gates did NOT pass: {gates}")).format(
            gates=gates), ""]  # fmt: skip
    lines += [f"| {_('metric')} | {_('rows')} | {_('base')} | {_('tuned')} |", "|---|---:|---:|---:|"]
    for entry in found["metrics"]:
        name = f"{entry['name']} ({entry['set']})" if entry.get("set") else entry["name"]
        lines.append(f"| {name} | {_figure(entry['rows'])} | {_figure(entry['base'])} | {_figure(entry['tuned'])} |")
    return lines


def _figure(value: Any) -> str:
    value = value.get("value") if isinstance(value, dict) else value
    return f"{value:.4g}" if isinstance(value, int | float) and not isinstance(value, bool) else "-"


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
        (_("merged into"), _quantized(document.get("quantized_base"))),
        (_("adapters"), _several(document.get("adapters"))),
        (_("run"), run.get("name")),
        (_("recipe"), recipe),
        (_("recipe, SHA-256"), run.get("recipe_sha256")),
        (_("data, SHA-256"), run.get("data_sha256")),
        (_("scores"), scores),
    ]


def _quantized(how: dict[str, Any] | None) -> str | None:
    if how is None:
        return None
    name = f"{how['type']}{_(', scales quantized too') if how['nested'] else ''}"
    return _("the base as it was quantized for the training ({name})").format(name=name)


def _several(adapters: list[dict[str, Any]] | None) -> str | None:
    return ", ".join(f"`{Path(one['path']).name}` x {one['weight']:g}" for one in adapters or ())
