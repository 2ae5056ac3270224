"""Which GPUs a run gets, and the locks that keep a second run off them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from engine.errors import DoesNotFit, FtuiError
from engine.files import Lock
from engine.text import _, ngettext
from engine.workspace import Workspace

if TYPE_CHECKING:
    from engine.hardware.gpus import Gpu
    from engine.recipe.model import Recipe

FIRST_BF16 = 8.0  # compute capability of Ampere
FIRST_FP8 = 8.9  # of Ada; Hopper follows


@dataclass(frozen=True)
class Placement:
    """Where the ranks run: the uuids of their GPUs (none: the CPU), how many ranks, and the locks on those GPUs.

    `bf16` is whether all of them compute in bfloat16 (cards before Ampere do not); `cards` says what they are.
    """

    gpus: Sequence[str]
    ranks: int
    locks: Sequence[Lock]
    bf16: bool = True
    cards: Sequence[Gpu] = ()

    @property
    def device(self) -> str:
        return "cuda" if self.gpus else "cpu"

    def release(self) -> None:
        """Let go of the locks (after the supervisor has inherited them, or when it never will)."""
        for lock in self.locks:
            lock.release()


def place(workspace: Workspace, *, count: int | None, force: bool = False, processes: int = 1) -> Placement:
    """Choose and lock the GPUs of a run.

    A GPU is free when no other run holds its lock and no process uses it; CUDA_VISIBLE_DEVICES narrows the choice.

    Args:
        count: how many; 0 is the CPU; None takes all that are free, and the CPU where there are none at all.
        force: take GPUs that are in use, too.
        processes: how many ranks the CPU gets, where it is the CPU.

    Raises:
        DoesNotFit: there are fewer free GPUs than wanted.
        FtuiError: there are GPUs, but the driver does not work.
    """
    if count == 0:
        return Placement((), processes, ())
    from engine.hardware import gpus as hardware

    with hardware.Probe() as probe:
        known = hardware.visible(probe.list())
        if not known:
            _refuse_broken_driver(probe)
            if count is not None:
                wanted = ngettext("{n} GPU is wanted", "{n} GPUs are wanted", count).format(n=count)
                raise DoesNotFit(
                    _("{wanted} and none is here").format(wanted=wanted),
                    fix=_("`device=cpu` trains on the CPU; `ftui doctor` says what it sees"),
                    kind="no_gpus",
                )
            return Placement((), 1, ())
        free = known if force else hardware.free(known, probe.sample())
    return _lock(workspace, known, free, count, force)


def place_again(
    workspace: Workspace, recipe: Mapping[str, Any], state: Mapping[str, Any], count: int | None
) -> Placement:
    """The GPUs of a run that goes on: as many as before, or `count`; of a run on the CPU, its processes.

    Raises:
        FtuiError: as `place`.
    """
    before = state.get("gpus") or []
    if recipe.get("device") == "cpu":
        return place(workspace, count=0, processes=count or int(state.get("world_size") or 1))
    placement = place(workspace, count=len(before) if count is None else count)
    if placement.gpus and recipe.get("sharding") == "pipeline":  # one process, its layers on all of them
        placement = replace(placement, ranks=1)
    return placement


def here(recipe: Recipe) -> tuple[int, bool]:
    """How many GPUs a recipe would get on this machine if nothing else ran, and whether they compute in bfloat16.

    Nothing is locked: this is for showing what a run would be.
    """
    wanted = recipe.given.get("num_gpus")
    if recipe.get("device") == "cpu" or recipe.get("use_cpu") is True or wanted == 0:
        return 0, True
    from engine.hardware import gpus as hardware

    with hardware.Probe() as probe:
        known = hardware.visible(probe.list())
    if not known:
        return wanted or 0, True
    chosen = known[:wanted] if wanted else known
    return wanted or len(chosen), _bf16(chosen)


def _bf16(gpus: Sequence[Gpu]) -> bool:
    return all(_at_least(gpu, FIRST_BF16) for gpu in gpus)


def _at_least(gpu: Gpu, capability: float) -> bool:
    """Whether a card is of this CUDA generation or newer; yes where it is not known, and of AMD's names for theirs."""
    try:
        return float(gpu.capability or capability) >= capability
    except ValueError:
        return True


def refuse_fp8(cards: Sequence[Gpu]) -> None:
    """Stop a run in FP8 on cards that do not compute it.

    Raises:
        DoesNotFit: one of them does not.
    """
    for gpu in cards:
        if not _at_least(gpu, FIRST_FP8):
            raise DoesNotFit(
                _("{card} computes no FP8: cards of compute capability 8.9 and newer do").format(card=gpu.name),
                where="fp8",
                fix=_("delete fp8: bf16 is used then"),
                kind="no_fp8",
            )


def refuse_flash(attention: object, *, on_gpus: bool) -> None:
    """Stop a run with FlashAttention on the CPU, before it has loaded its data.

    Raises:
        DoesNotFit: there is no GPU.
    """
    if not on_gpus and str(attention).startswith("flash_attention"):
        raise DoesNotFit(
            _("{attention} needs a GPU, and this run has none").format(attention=attention),
            where="attn_implementation",
            fix=_("use attn_implementation: sdpa"),
            kind="no_flash_attention",
        )


def _refuse_broken_driver(probe: object) -> None:
    """A machine with GPUs must not fall back to the CPU without a word."""
    from engine.hardware import gpus as hardware

    assert isinstance(probe, hardware.Probe)
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") is not None and probe.problem is None
    if probe.problem is not None and hardware.on_pci_bus() and not hidden:
        raise FtuiError(
            probe.problem.message,
            fix=_("{fix}; or `device=cpu` trains on the CPU").format(fix=probe.problem.fix),
            kind=probe.problem.kind,
        )


def _lock(workspace: Workspace, known: list[Gpu], free: list[Gpu], count: int | None, force: bool) -> Placement:
    folder = workspace.keeper_dir / "gpus"
    folder.mkdir(parents=True, exist_ok=True)
    chosen: list[Gpu] = []
    locks: list[Lock] = []
    for gpu in free:
        if count is not None and len(chosen) == count:
            break
        lock = Lock(folder / f"{gpu.uuid.replace('/', '_')}.lock")
        if lock.acquire():
            locks.append(lock)
        elif not force:
            continue
        chosen.append(gpu)
    wanted = count if count is not None else 1
    if len(chosen) < wanted:
        for lock in locks:
            lock.release()
        raise DoesNotFit(
            _("{wanted} of the {total} GPUs wanted, {free} free").format(
                wanted=wanted, total=len(known), free=len(chosen)
            ),
            fix=_("wait for the other runs (`ftui runs`), set num_gpus, or take GPUs in use with --force"),
            kind="gpus_in_use",
        )
    return Placement(tuple(gpu.uuid for gpu in chosen), len(chosen), tuple(locks), _bf16(chosen), tuple(chosen))
