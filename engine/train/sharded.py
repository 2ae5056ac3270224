"""Sharded state in the format of torch.distributed.checkpoint, planned while training waits and written later.

Stock `dcp.save` plans, copies, writes and agrees in one call of all ranks: a rank whose disk is full or hangs holds
the others in a collective. Here the ranks only agree on the plan, before anything is written; each then writes its
part alone, and rank 0 puts the metadata beside them when it has heard from all. Readers cannot tell the difference.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch.distributed.checkpoint import DefaultSavePlanner, FileSystemWriter
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import WriteItem
from torch.distributed.checkpoint.storage import WriteResult

from engine.train import torchzip
from engine.train.staging import Bytes, Capture, File

Exchange = Callable[[Any], list[Any]]  # what each rank says, as all ranks hear it
METADATA = ".metadata"


@dataclass
class Part:
    """What one rank writes of one sharded state dict; `metadata` is rank 0's."""

    folder: str
    results: list[WriteResult]
    metadata: Metadata | None

    def finish(self, of_all: list[list[WriteResult]]) -> File:
        """The .metadata of the folder, from the results of all ranks."""
        assert self.metadata is not None
        writer = FileSystemWriter(self.folder)
        self.metadata.storage_data = {result.index: result.storage_data for results in of_all for result in results}
        self.metadata.storage_meta = writer.storage_meta()
        data = pickle.dumps(self.metadata)
        return File(f"{self.folder}/{METADATA}", len(data), lambda: iter([data]))


class Planner:
    """Plans the parts of one sharded state dict, and keeps the plan: from one save to the next only numbers change."""

    def __init__(self, folder: str, exchange: Exchange, rank: int) -> None:
        """Args: its name in the checkpoint; what gathers a value of each rank, called by all; this rank."""
        self.folder = folder
        self.exchange = exchange
        self.rank = rank
        self._form: Any = None
        self._items: list[WriteItem] = []
        self._metadata: Metadata | None = None

    def add(self, capture: Capture, state: dict[str, Any]) -> Part:
        """Agree with all ranks on who writes what of `state` (as for `dcp.save`), and take this rank's part."""
        planner, writer = DefaultSavePlanner(), FileSystemWriter(self.folder)
        planner.set_up_planner(state_dict=state, storage_meta=writer.storage_meta(), is_coordinator=self.rank == 0)
        form = [(key, getattr(v, "dtype", None), getattr(v, "shape", None)) for key, v in planner.state_dict.items()]
        if not all(self.exchange(form == self._form)):
            self._plan(planner)
            self._form = form
        name = f"__{self.rank}_0.distcp"
        results: list[WriteResult] = []
        blobs: list[Callable[[], Iterator[Bytes]]] = []
        at = 0
        for item in self._items:
            size, pieces = _blob(capture, planner.resolve_data(item))
            results.append(WriteResult(item.index, size, _StorageInfo(name, at, size)))
            blobs.append(pieces)
            at += size
        if blobs:
            pieces = lambda: (piece for blob in blobs for piece in blob())  # noqa: E731
            capture.files.append(File(f"{self.folder}/{name}", at, pieces))
        return Part(self.folder, results, self._metadata)

    def _plan(self, planner: DefaultSavePlanner) -> None:
        plans = self.exchange(planner.create_local_plan())
        if self.rank == 0:
            plans, self._metadata = planner.create_global_plan(plans)
        self._items = planner.finish_plan(self.exchange(plans if self.rank == 0 else None)[0][self.rank]).items


def of_trainer(trainer: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """The sharded state of a trainer under FSDP2, by folders, as accelerate loads it; all ranks must take it."""
    from accelerate.utils.constants import FSDP_MODEL_NAME, OPTIMIZER_NAME
    from accelerate.utils.fsdp_utils import _get_model_state_dict, _prepare_sd_options
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
    from transformers.trainer import get_fsdp_ckpt_kwargs

    options = _prepare_sd_options(trainer.accelerator.state.fsdp_plugin)
    weights = _get_model_state_dict(trainer.model, sd_options=options, **get_fsdp_ckpt_kwargs())
    yield f"{FSDP_MODEL_NAME}_0", {"model": weights}
    moments = get_optimizer_state_dict(trainer.model, trainer.optimizer, options=options)
    yield f"{OPTIMIZER_NAME}_0", {"optimizer": moments}


def _blob(capture: Capture, data: Any) -> tuple[int, Callable[[], Iterator[Bytes]]]:
    """One item: bytes as they are, a tensor as torch.save would write it alone."""
    if isinstance(data, io.BytesIO):
        raw = data.getvalue()
        return len(raw), lambda: iter([raw])
    alone, fetch = torchzip.Alone.of(data), capture.fetch(data)
    return alone.size, lambda: alone.compose(fetch())
