"""What a resume promises, and what it refuses before anything is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.checkpoint.manifest import Manifest
from engine.errors import GateError
from engine.train import exactness

NOW = {"torch": "2.13.0", "peft": "0.21.2"}
ENTRY = {"size": 1, "sha256": "0"}


def saved(*names: str, ranks: int = 1, **fields) -> Manifest:
    random = ["rng_state.pth"] if ranks == 1 else [f"rng_state_{n}.pth" for n in range(ranks)]
    files = dict.fromkeys([*names, *random], ENTRY)
    return Manifest(4, world_size=ranks, versions=dict(NOW), recipe_sha256="r", data_sha256="d", files=files, **fields)


def reasons(one: Manifest, **changes) -> list[str]:
    same = {"world_size": one.world_size, "versions": NOW, "recipe_sha256": "r", "data_sha256": "d"}
    return exactness.reasons(one, **{**same, **changes})


def test_the_same_of_everything_is_exact():
    assert reasons(saved()) == []
    assert reasons(saved(ranks=2)) == []


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"world_size": 2}, "ranks: 2 instead of 1"),
        ({"versions": {**NOW, "torch": "2.14.0"}}, "torch 2.14.0 instead of 2.13.0"),
        ({"versions": {"torch": "2.13.0"}}, "peft - instead of 0.21.2"),
        ({"recipe_sha256": "other"}, "the recipe is not"),
        ({"data_sha256": None}, "the data are not"),
    ],
)
def test_each_difference_is_told(changes, says):
    (reason,) = reasons(saved(), **changes)
    assert says in reason


def test_a_missing_random_state_is_told():
    one = saved(ranks=2)
    del one.files["rng_state_1.pth"]
    assert reasons(one) == ["the random state of some rank is missing"]


FSDP, ZERO, PLAIN = "pytorch_model_fsdp_0/__0_0.distcp", "global_step4/zero_pp_rank_0_mp_rank_00_optim_states.pt", "a"


@pytest.mark.parametrize(
    ("name", "ranks", "sharding", "world", "refused"),
    [
        (PLAIN, 1, "auto", 1, False),
        (PLAIN, 1, "ddp", 8, False),  # an adapter from one GPU to eight
        (PLAIN, 8, "ddp", 1, False),
        (FSDP, 2, "fsdp2", 2, False),
        (FSDP, 2, "fsdp2", 4, False),
        (FSDP, 2, "fsdp2", 1, True),
        (FSDP, 2, "ddp", 2, True),
        (PLAIN, 1, "fsdp2", 2, True),
        (ZERO, 2, "zero3", 2, False),
        (ZERO, 2, "zero3", 4, True),
        (ZERO, 2, "ddp", 2, True),
        (FSDP, 2, "zero3", 2, True),
    ],
)
def test_state_that_cannot_be_read_is_refused(name, ranks, sharding, world, refused):
    one = saved(name, ranks=ranks)
    if not refused:
        exactness.require_form(Path("checkpoint-4"), one, sharding, world)
        return
    with pytest.raises(GateError) as error:
        exactness.require_form(Path("checkpoint-4"), one, sharding, world)
    assert error.value.fix
