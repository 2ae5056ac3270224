"""Agreement between the ranks, on a gloo group of its own.

On NCCL each small exchange would wait for the GPU's queue, at every step; and rank 0 may tokenise for hours while
the others wait, which must not run into the training group's timeout.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from engine.errors import FtuiError
from engine.train.rank import Rank

PATIENCE = datetime.timedelta(hours=24)
T = TypeVar("T")


class Ranks:
    """All ranks of the run as seen from this one; with one rank every method answers at once."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self.size = rank.world_size
        self._group: Any = None

    @property
    def first(self) -> bool:
        """Whether this is rank 0."""
        return self.rank.first

    def connect(self) -> None:
        """Make the group; the training's own process group must be there."""
        if self.size > 1:
            import torch.distributed as dist

            self._group = dist.new_group(backend="gloo", timeout=PATIENCE)

    def highest(self, flags: Sequence[int]) -> list[int]:
        """The largest value of each flag over all ranks."""
        if self._group is None:
            return list(flags)
        import torch
        import torch.distributed as dist

        tensor = torch.tensor(flags, dtype=torch.int64)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self._group)
        return [int(value) for value in tensor]

    def gather(self, value: T) -> list[T]:
        """The values of all ranks, in their order."""
        if self._group is None:
            return [value]
        import torch.distributed as dist

        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self._group)
        return values

    def by_first(self, work: Callable[[], T]) -> T:
        """The result of `work` on rank 0, for all ranks; they wait for it. Its error is raised on all of them."""
        if self._group is None:
            return work()
        import torch.distributed as dist

        box: list[Any] = [None, None]
        if self.first:
            try:
                box[0] = work()
            except FtuiError as error:
                box[1] = error.to_json()
            except Exception as error:
                dist.broadcast_object_list([None, {"message": str(error), "kind": "crash"}], src=0, group=self._group)
                raise
        dist.broadcast_object_list(box, src=0, group=self._group)
        if box[1] is not None:
            told = box[1]
            raise FtuiError(
                told["message"],
                where=told.get("where"),
                fix=told.get("fix"),
                kind=told["kind"],
                exit_code=told.get("exit_code"),
            )
        return box[0]

    def close(self) -> None:
        """Leave all groups."""
        if self.size > 1:
            import torch.distributed as dist

            if dist.is_initialized():
                dist.destroy_process_group()
