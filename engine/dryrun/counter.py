"""A dispatch mode that counts the bytes of live storages and remembers the peak of each phase."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "transients")


class LiveBytes(TorchDispatchMode):
    """Counts storages, not tensors: a view costs nothing, and a storage lives as long as anything holds it.

    Works the same on fake and on real tensors. Each new storage belongs to the current `part` until `mark` says
    otherwise; the peak of each `phase` is kept with its parts.
    """

    def __init__(self, block: int = 1) -> None:
        """Count nothing yet.

        Args:
            block: sizes are rounded up to it (512 for what CUDA's allocator hands out).
        """
        super().__init__()
        self.block = block
        self.phase = "build"
        self.part = "weights"
        self.total = 0
        self.parts = dict.fromkeys(PARTS, 0)
        self.peaks: dict[str, tuple[int, dict[str, int]]] = {}
        self.replacements: dict[Any, Callable[..., Any]] = {}
        self.workspaces: dict[Any, Callable[..., int]] = {}
        self._live: dict[int, list[Any]] = {}  # id of a storage -> [weak reference, bytes, part]
        self._silent = 0
        self._depth = 0
        self._restore: list[Callable[[], None]] = []

    def __enter__(self) -> LiveBytes:
        if not self._depth:
            self._watch_resizes()
            self._ignore_propagation()
        self._depth += 1
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._depth -= 1
        while self._restore and not self._depth:
            self._restore.pop()()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # DTensor first: it comes back here with the local tensors
        replacement = self.replacements.get(func)
        kwargs = kwargs or {}
        if replacement is not None:
            with self:
                out = replacement(*args, **kwargs)
            if out is not NotImplemented:
                return out
        out = func(*args, **kwargs)
        if not self._silent:
            if isinstance(out, torch.Tensor):
                self._add(out.untyped_storage(), passing=not self._summing(func))
            elif out is not None:
                for leaf in tree_leaves(out):
                    if isinstance(leaf, torch.Tensor):
                        self._add(leaf.untyped_storage())
            workspace = self.workspaces.get(func)
            if workspace is not None:
                self._passing(workspace(*args, **kwargs))
        return out

    # --- bookkeeping

    def track(self, tensor: torch.Tensor, part: str) -> None:
        """Count a tensor that was made before the mode was entered, or give its bytes to another part."""
        local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
        storage = local.untyped_storage()
        self._add(storage)
        entry = self._live[id(storage)]
        if entry[2] != part:
            self.parts[entry[2]] -= entry[1]
            self.parts[part] += entry[1]
            entry[2] = part

    def enter(self, phase: str, part: str) -> None:
        """Go on to a phase; its peak begins with what lives now."""
        self.phase, self.part = phase, part
        self._passing(0)

    def forget(self) -> None:
        """Drop the peaks so far."""
        self.peaks = {}

    @contextlib.contextmanager
    def silent(self) -> Iterator[None]:
        """Storages made here are not counted."""
        self._silent += 1
        try:
            yield
        finally:
            self._silent -= 1

    @contextlib.contextmanager
    def labelled(self, part: str) -> Iterator[None]:
        """Storages made here belong to `part`."""
        before, self.part = self.part, part
        try:
            yield
        finally:
            self.part = before

    def _size(self, storage: torch.UntypedStorage) -> int:
        return -(-storage.nbytes() // self.block) * self.block

    @staticmethod
    def _summing(func: Any) -> bool:
        """Whether autograd sums two gradients here, which it does in place unless a mode like this one is looking.

        The sum is counted, but its moment beside both summands is no peak: they are gone at the next operation,
        and where they are not it shows then.
        """
        return (
            func is torch.ops.aten.add.Tensor
            and not torch.is_grad_enabled()
            and torch._C._current_graph_task_id() != -1
        )

    def _add(self, storage: torch.UntypedStorage, passing: bool = True) -> None:
        key = id(storage)
        if key in self._live:
            return
        size = self._size(storage)
        live = self._live

        def gone(_reference: Any) -> None:
            entry = live.pop(key)
            self.total -= entry[1]
            self.parts[entry[2]] -= entry[1]

        live[key] = [weakref.ref(storage, gone), size, self.part]
        self.total += size
        self.parts[self.part] += size
        if passing:
            self._passing(0)

    def _passing(self, size: int) -> None:
        """Look whether `size` bytes more, for a moment, are a peak."""
        peak = self.peaks.get(self.phase)
        if peak is None or self.total + size > peak[0]:
            parts = dict(self.parts)
            parts["transients"] += size
            self.peaks[self.phase] = (self.total + size, parts)

    def _watch_resizes(self) -> None:
        """FSDP frees and fills its gathered parameters by resizing storages, which no dispatch shows."""
        original = torch.UntypedStorage.resize_

        def resize(storage: torch.UntypedStorage, size: int) -> Any:
            done = original(storage, size)
            entry = self._live.get(id(storage))
            if entry is not None:
                change = self._size(storage) - entry[1]
                entry[1] += change
                self.total += change
                self.parts[entry[2]] += change
                self._passing(0)
            return done

        torch.UntypedStorage.resize_ = resize  # type: ignore[assignment,method-assign]
        self._restore.append(lambda: setattr(torch.UntypedStorage, "resize_", original))

    def _ignore_propagation(self) -> None:
        """DTensor finds the shapes of a result by running the operation on whole fake tensors: not memory."""
        name = "_propagate_tensor_meta_non_cached"
        original = getattr(ShardingPropagator, name)

        def propagate(*args: Any, **kwargs: Any) -> Any:
            with self.silent():
                return original(*args, **kwargs)

        setattr(ShardingPropagator, name, propagate)
        self._restore.append(lambda: setattr(ShardingPropagator, name, original))
