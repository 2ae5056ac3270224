"""Which files a checkpoint must have: they differ with what saved it (one process, DDP, FSDP, ZeRO, an adapter)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping

from engine.checkpoint.problems import Problems
from engine.checkpoint.tree import File
from engine.text import _

_ADAPTER = re.compile(r"([^/]+/)?adapter_model\.(safetensors|bin)\Z")
_FULL = re.compile(r"(model|pytorch_model)(-\d+-of-\d+)?\.(safetensors|bin)(\.index\.json)?\Z")
_SHARDED = re.compile(r"pytorch_model_fsdp(_rank)?(_?\d+)?(\.bin\Z|/)|global_step\d+/.*model_states\.pt\Z")
_OPTIMIZER = re.compile(r"optimizer\.(pt|bin)(_\d.*)?\Z|optimizer(_rank)?_?\d+(/|\.bin\Z)")
_RNG = re.compile(r"rng_state(_(\d{1,6}))?\.pth\Z")
_DCP = re.compile(r"(.+)/__(\d{1,6})_\d+\.distcp\Z")
_ZERO = re.compile(
    r"(global_step(\d{1,18}))/(?:[a-z0-9]+_)*zero_pp_rank_(\d{1,6})_mp_rank_(\d{1,6})_(optim|model)_states\.pt\Z"
)
_ZERO_DIR = re.compile(r"global_step\d+/")
_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.(safetensors|bin)\Z")


def check(files: Mapping[str, File], world_size: int | None, problems: Problems) -> None:
    """Report what is missing.

    Args:
        files: the checkpoint's files.
        world_size: how many ranks saved it, where the manifest says so.
        problems: takes what is missing.
    """
    check_weights(files, problems)
    zero = any(_ZERO_DIR.match(name) for name in files)
    if not zero:  # ZeRO keeps optimizer and scheduler in its own files
        if not any(_OPTIMIZER.match(name) for name in files):
            _missing("optimizer.pt", problems)
        if "scheduler.pt" not in files:
            _missing("scheduler.pt", problems)
    if "trainer_state.json" not in files:
        _missing("trainer_state.json", problems)
    ranks = _sharded_ranks(files)
    if zero:
        ranks = max(ranks, _zero(files, world_size, problems))
    _random(files, world_size, ranks, problems)


def _missing(name: str, problems: Problems) -> None:
    problems.add("missing_file", "error", _("{file} is missing").format(file=name), name)


def check_weights(files: Mapping[str, File], problems: Problems) -> None:
    """Report weights or an adapter that are missing."""
    adapter = any(_ADAPTER.match(name) for name in files)
    full = any(_FULL.match(name) for name in files)
    if not (adapter or full or any(_SHARDED.match(name) for name in files)):
        _missing("adapter_model.safetensors" if "adapter_config.json" in files else "model.safetensors", problems)
    for name in files:
        if (match := _ADAPTER.match(name)) and f"{match[1] or ''}adapter_config.json" not in files:
            _missing(f"{match[1] or ''}adapter_config.json", problems)
    if full and "config.json" not in files and not adapter:
        problems.add("missing_file", "warning", _("{file} is missing").format(file="config.json"), "config.json")
    _numbered_parts(files, problems)


def _numbered_parts(files: Mapping[str, File], problems: Problems) -> None:
    """model-00001-of-00003.safetensors speaks of two more, whatever an index says."""
    have: dict[tuple[str, str, str], set[int]] = defaultdict(set)
    for name in files:
        if match := _PART.match(name):
            have[match[1], match[3], match[4]].add(int(match[2]))
    for (stem, total, end), numbers in have.items():
        if f"{stem}.{end}.index.json" not in files:
            _missing(f"{stem}.{end}.index.json", problems)
        for number in range(1, int(total) + 1):
            if number not in numbers:
                name = f"{stem}-{number:05d}-of-{total}.{end}"
                problems.add("missing_shard", "error", _("{file} is missing").format(file=name), name)


def _sharded_ranks(files: Mapping[str, File]) -> int:
    """How many ranks wrote shards of torch.distributed.checkpoint."""
    return max((int(match[2]) + 1 for name in files if (match := _DCP.match(name))), default=0)


def dcp_folders(files: Mapping[str, File]) -> list[str]:
    """The folders that torch.distributed.checkpoint wrote."""
    folders = {match[1] for name in files if (match := _DCP.match(name))}
    folders |= {name.removesuffix("/.metadata") for name in files if name.endswith("/.metadata")}
    return sorted(folders)


def _zero(files: Mapping[str, File], world_size: int | None, problems: Problems) -> int:
    """ZeRO's folder: one part a rank; returns the number of ranks that it speaks of."""
    parts: dict[tuple[str, str, str], set[int]] = defaultdict(set)
    for name in files:
        if match := _ZERO.match(name):
            parts[match[1], match[4], match[5]].add(int(match[3]))
    folder = max((name.partition("/")[0] for name in files if _ZERO_DIR.match(name)), key=len)
    if "latest" not in files:
        _missing("latest", problems)
    numbers = [int(match[2] or 0) for name in files if (match := _RNG.match(name))]
    known = world_size or (max(numbers) + 1 if numbers else 1)
    ranks = max([known, *(max(have) + 1 for have in parts.values())]) if parts else known
    if not any(kind == "optim" for _folder, _mp, kind in parts):
        name = f"{folder}/zero_pp_rank_0_mp_rank_00_optim_states.pt"
        problems.add("missing_shard", "error", _("{file} is missing").format(file=name), name)
    if not any(name.endswith("model_states.pt") and _ZERO_DIR.match(name) for name in files):
        name = f"{folder}/mp_rank_00_model_states.pt"
        problems.add("missing_shard", "error", _("{file} is missing").format(file=name), name)
    # With tensor or pipeline parallelism a group has fewer members than there are ranks: then only gaps tell.
    groups = len({mp for _folder, mp, _kind in parts}) or 1
    for (where, mp, kind), have in sorted(parts.items()):
        for rank in range(max(max(have) + 1, ranks // groups)):
            if rank not in have:
                name = f"{where}/zero_pp_rank_{rank}_mp_rank_{mp}_{kind}_states.pt"
                problems.add("missing_shard", "error", _("{file} is missing").format(file=name), name)
    return ranks


def _random(files: Mapping[str, File], world_size: int | None, ranks: int, problems: Problems) -> None:
    """The random state of each rank: one file, or one a rank."""
    single = "rng_state.pth" in files
    numbered = {int(match[2]) for name in files if (match := _RNG.match(name)) and match[2]}
    if not single and not numbered:
        name = "rng_state.pth" if max(world_size or 1, ranks) <= 1 else "rng_state_0.pth"
        detail = _("{file} is missing: the random numbers would not be those of the run")
        problems.add("missing_rng", "warning", detail.format(file=name), name)
        return
    have = len(numbered) if numbered else 1
    # A number in a name means that there were several; the last ones may be gone without leaving a gap.
    want = world_size or max([ranks, *(n + 1 for n in numbered), 2 if numbered else 1])
    if (numbered and numbered != set(range(want))) or (not numbered and want > 1):
        detail = _("random states of {have} ranks, saved by {want}")
        problems.add("rng_rank_mismatch", "warning", detail.format(have=have, want=want))
    elif ranks and have > ranks and world_size is None:
        detail = _("random states of {have} ranks, parts of {want}")
        problems.add("rng_rank_mismatch", "warning", detail.format(have=have, want=ranks))
