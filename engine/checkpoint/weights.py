"""The middle tier of keeping: a checkpoint's weights or adapter without what only a continued run needs.

A full checkpoint of full fine-tuning is eight times its weights, an adapter's three times. The reduced one is sealed
like any other (its files are hard links to those of the full one, so nothing is copied) and takes its place.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import asdict
from pathlib import Path

from engine.checkpoint import ledger, manifest

# Only for going on: optimizer, schedule, random states. trainer_state.json stays: it tells how the weights came to be.
_FOR_RESUMING = re.compile(
    r"(optimizer[^/]*(\.(pt|bin)\Z|/)|scheduler\.pt\Z|scaler\.pt\Z|rng_state[^/]*\.pth\Z|global_step\d+/"
    r"|latest\Z|zero_to_fp32\.py\Z|training_args\.bin\Z)"
)
_WEIGHTS = re.compile(r"((.+/)?adapter_model|model|pytorch_model)[^/]*(\.(safetensors|bin)\Z|/)")


def of(content: manifest.Manifest) -> dict[str, dict[str, object]]:
    """The files that stay; empty where the weights cannot be told from the rest (ZeRO's own parts)."""
    stay = {name: entry for name, entry in content.files.items() if not _FOR_RESUMING.match(name)}
    return stay if any(_WEIGHTS.match(name) for name in stay) else {}


def can_reduce(entry: ledger.Entry) -> bool:
    """Whether a whole checkpoint would become smaller."""
    content = manifest.read(entry.path) if entry.state == "complete" else None
    return content is not None and content.tier != manifest.WEIGHTS and 0 < len(of(content)) < len(content.files)


def size(checkpoint: Path) -> int:
    """Bytes of the reduced checkpoint."""
    content = manifest.read(checkpoint)
    return sum(int(str(entry["size"])) for entry in of(content).values()) if content else 0


def reduce(checkpoint: Path) -> manifest.Manifest | None:
    """Put the weights of a checkpoint in its place; None, and nothing done, where that cannot be.

    Raises:
        OSError: it could not be written; the full checkpoint is still there.
    """
    content = manifest.read(checkpoint)
    files = of(content) if content else {}
    if content is None or not files:
        return None
    staging = checkpoint.with_name(f".staging-weights-{content.step}")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir()
    linked = {}
    for name, entry in files.items():
        (staging / name).parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(checkpoint / name, staging / name)
            linked[name] = entry
        except OSError:  # a file system without hard links
            shutil.copyfile(checkpoint / name, staging / name)
    meta = asdict(content) | {"tier": manifest.WEIGHTS}
    del meta["files"], meta["format"]
    return manifest.seal(staging, checkpoint, meta, known=linked)
