"""Findings of a merge: one for each kind, with the tensors and files it was seen in, each with what to do."""

from __future__ import annotations

from engine.checkpoint.problems import Problems, clean
from engine.findings import Finding, Level
from engine.text import _

NAMED = 20
TEXT = 300


def _fix(kind: str) -> str:
    return {
        "adapter_config": _("save the adapter again with PEFT, or correct adapter_config.json"),
        "adapter_key_not_in_base": _("give the model it was trained on with --base DIR"),
        "base_not_found": _("give the base model's folder with --base DIR"),
        "index_key_not_in_shard": _("copy the base model again: its parts do not belong together"),
        "license_name": "",
        "logits_not_checked": "",
        "lora_module_missing": _("if these layers were trained, part of the adapter is missing: save it again"),
        "lora_pair_incomplete": _("part of the adapter is missing: save it again, or take an older checkpoint"),
        "missing_shard": _("bring the missing file back: copy the model again"),
        "modules_to_save_missing": _("part of the adapter is missing: save it again, or take an older checkpoint"),
        "non_finite_weights": _(
            "the training had diverged, or the type is too narrow: take an older checkpoint or bf16"
        ),
        "quantized_base": _("give the 16-bit model that it was made from with --base DIR"),
        "quantized_training": _("the two differ a little: evaluate the merged model again"),
        "rank_mismatch": _("adapter_config.json is not this adapter's: bring the right one back"),
        "rounding_loss": _("--dtype fp32 keeps it, and so does serving base and adapter side by side"),
        "shape_mismatch": _("give the model it was trained on with --base DIR"),
        "tied_embeddings_untied": _("nothing to do: the model grows by one matrix of that size"),
        "unsupported_adapter": _("serve base and adapter side by side instead"),
        "unsupported_base": _("convert the base to safetensors first (save_pretrained)"),
        "verification_failed": _("serve base and adapter side by side, and report this"),
        "vocab_resized": _("nothing to do when tokens were added for the training; else check the base"),
        "zero_lora_b": _("the adapter has learned nothing: check that LoRA layers were trained"),
    }.get(kind, _("copy the file again"))


class Report:
    """Collects findings; those of one kind and level are one finding with a count."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, Level], Finding] = {}

    def add(self, kind: str, level: Level, detail: str, name: str = "", *, fix: str | None = None) -> None:
        """Note a problem of the tensor, key or file `name`."""
        finding = self._found.get((kind, level))
        if finding is None:
            text = clean(f"{name}: {detail}" if name and name not in detail else detail)[:TEXT]
            finding = Finding(kind, level, text, _fix(kind) if fix is None else fix, count=0, extra={"names": []})
            self._found[kind, level] = finding
        finding.count += 1
        if name and len(finding.extra["names"]) < NAMED:
            finding.extra["names"].append(clean(name)[:TEXT])

    def count(self, level: Level) -> int:
        """How many problems of a level there are."""
        return sum(finding.count for (_kind, own), finding in self._found.items() if own == level)

    def take(self, problems: Problems) -> None:
        """Adopt what a header's reader found."""
        for found in problems.findings:
            for name in found.extra["files"] or [""]:
                self.add(found.kind, found.level, found.detail, name)

    @property
    def findings(self) -> list[Finding]:
        """What was found, errors first."""
        return sorted(self._found.values(), key=lambda f: ("error", "warning", "note").index(f.level))

    @property
    def broken(self) -> bool:
        """Whether nothing may be merged."""
        return any(level == "error" for _kind, level in self._found)
