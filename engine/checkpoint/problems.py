"""What is wrong with one checkpoint: findings of a bounded number and size, each with what to do about it."""

from __future__ import annotations

from engine.findings import Finding, Level
from engine.text import _

NAMED = 20  # files or tensors listed for one kind of problem; `count` carries the whole number
TEXT = 300  # characters of a detail; a hostile file must not fill the screen

# With these a run can go on, but not exactly as it would have: another order of the data, an adapter that learned
# nothing, a part of another step. Such a checkpoint is not called complete and a complete one is preferred.
NOT_EXACT = frozenset({"missing_rng", "rng_rank_mismatch", "zero_lora_b", "step_mismatch", "unsafe_pickle"})


def clean(text: str) -> str:
    """Text of a file's making (a name, a key) that can go to a terminal and into JSON: no control characters."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "replace").decode() for c in _decoded(text))


def _decoded(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _fix(kind: str) -> str:
    older = _("resume from the newest complete checkpoint, or restore this one from a backup")
    return {
        "bad_json": older,
        "dangling_symlink": _("bring back what the link points to (a disk that is not mounted?), or restore the file"),
        "empty_tensor": _(
            "the weights were saved without being gathered (ZeRO-3, FSDP): resume from an older checkpoint, "
            "or rebuild them from the sharded state"
        ),
        "hash_mismatch": _("something changed the file after it was saved: restore it from a backup, check the disk"),
        "incomplete_save": older,
        "index_key_not_in_shard": older,
        "inner_loop": _("remove the link: copies and backups that follow links would never end"),
        "missing_file": _("the save was cut short or files were removed: ") + older,
        "missing_rng": _("resuming works, but the order of the data and the dropout will differ"),
        "missing_shard": _("one rank's part was never written or was removed: ") + older,
        "non_finite_weights": _("the training had diverged: resume from before, with a lower learning rate"),
        "not_a_checkpoint_name": _("nothing to do: it is never resumed from; remove it when you do not need it"),
        "not_a_folder": _("nothing to do: it is never resumed from"),
        "rng_rank_mismatch": _("resume on as many ranks as saved it; on others the order of the data will differ"),
        "shape_mismatch": _("resume with the settings it was saved with (model, LoRA rank), or from another one"),
        "step_mismatch": _("parts of two checkpoints were mixed: ") + older,
        "symlink_loop": _("remove the links and bring the folder back"),
        "truncated_safetensors": older,
        "truncated_shard": older,
        "truncated_zip": older,
        "unreadable": _("check its permissions and the disk (dmesg)"),
        "unsafe_pickle": _("do not load this file with anything but safe loading; find out where it came from"),
        "weights_only": _("nothing to do: resume from a full checkpoint; this one is for merging and evaluating"),
        "wrong_content": older,
        "zero_byte": _("the save was cut short (full disk, crash): ") + older,
        "zero_lora_b": _("the adapter has learned nothing: check that LoRA layers were trained, and the learning rate"),
    }.get(kind, older)


class Problems:
    """Collects findings: one for each kind and level, with the files it was seen in."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, Level], Finding] = {}

    def add(self, kind: str, level: Level, detail: str, file: str = "", subtype: str | None = None) -> None:
        """Note a problem; `file` is relative to the checkpoint."""
        file = clean(file)
        finding = self._found.get((kind, level))
        if finding is None:
            text = clean(f"{file}: {detail}" if file and file not in detail else detail)[:TEXT]
            finding = Finding(kind, level, text, _fix(kind), count=0, subtype=subtype, extra={"files": []})
            self._found[kind, level] = finding
        finding.count += 1
        if file and len(finding.extra["files"]) < NAMED and file not in finding.extra["files"]:
            finding.extra["files"].append(file)

    @property
    def findings(self) -> list[Finding]:
        """What was found, errors first."""
        order = {"error": 0, "warning": 1, "note": 2}
        return sorted(self._found.values(), key=lambda finding: order[finding.level])

    @property
    def broken(self) -> bool:
        """Whether it must not be resumed from."""
        return any(level == "error" for _kind, level in self._found)

    @property
    def exact(self) -> bool:
        """Whether a run that goes on from it is the run that it would have been."""
        return not self.broken and not any(kind in NOT_EXACT and level == "warning" for kind, level in self._found)
