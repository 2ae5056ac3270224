"""Whether a resumed run is the run that it would have been: what is promised, and why it is not where it is not.

Light: no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from engine.checkpoint import manifest
from engine.errors import GateError
from engine.text import _

# A change of these may change a sum or the order of random numbers.
DECISIVE = (
    "torch", "transformers", "trl", "peft", "accelerate", "bitsandbytes", "deepspeed", "datasets", "numpy",
    "flash-attn",
)  # fmt: skip
PLAIN, FSDP, ZERO = "plain", "fsdp2", "zero"


def reasons(
    saved: manifest.Manifest,
    *,
    world_size: int,
    versions: Mapping[str, str],
    recipe_sha256: str,
    data_sha256: str | None,
) -> list[str]:
    """Why the figures may differ from those of the run that was not stopped; [] where they are promised to be equal."""
    found = []
    if saved.world_size != world_size:
        found.append(_("ranks: {after} instead of {before}").format(after=world_size, before=saved.world_size))
    random = ["rng_state.pth"] if saved.world_size <= 1 else [f"rng_state_{n}.pth" for n in range(saved.world_size)]
    if any(name not in saved.files for name in random):
        found.append(_("the random state of some rank is missing"))
    for name in DECISIVE:
        before, after = saved.versions.get(name), versions.get(name)
        if saved.versions and before != after:
            found.append(
                _("{package} {after} instead of {before}").format(
                    package=name, after=after or "-", before=before or "-"
                )
            )
    if saved.recipe_sha256 and saved.recipe_sha256 != recipe_sha256:
        found.append(_("the recipe is not the one that it was saved with"))
    if saved.data_sha256 and saved.data_sha256 != data_sha256:
        found.append(_("the data are not those that it was saved with"))
    return found


def form(saved: manifest.Manifest) -> str:
    """How the state in a checkpoint is laid out."""
    if any(name.startswith("global_step") for name in saved.files):
        return ZERO
    return FSDP if any(name.startswith("pytorch_model_fsdp") for name in saved.files) else PLAIN


def require_form(path: Path, saved: manifest.Manifest, sharding: str, world_size: int) -> None:
    """Refuse a checkpoint whose layout the run's sharding cannot read, before anything is loaded.

    Raises:
        GateError: with what can be done.
    """
    have = form(saved)
    want = ZERO if sharding.startswith("zero") else FSDP if sharding == "fsdp2" and world_size > 1 else PLAIN
    if have == want and (have != ZERO or saved.world_size == world_size):
        return
    if have == ZERO and want == ZERO:
        what = _("ZeRO's parts are those of {before} ranks and cannot be read by {after}")
        raise GateError(
            what.format(before=saved.world_size, after=world_size),
            where=str(path),
            fix=_("resume on {n} GPUs").format(n=saved.world_size),
            kind="bad_checkpoint",
        )
    names = {PLAIN: _("no sharding or DDP"), FSDP: "fsdp2", ZERO: "zero"}
    raise GateError(
        _("it was saved with {have}, and {want} cannot read that").format(have=names[have], want=names[want]),
        where=str(path),
        fix=_("resume with the sharding and the number of GPUs that it was saved with"),
        kind="bad_checkpoint",
    )
