"""A tape of one layer's operations that replays them and counts live bytes, as autograd would hold them.

This is the whole memory model of a layer: an operation says what it makes, what it saves for backward, and what it
needs for a moment. The peak follows from replaying, not from adding up maxima. A layer has about forty operations,
so a replay costs a fraction of a millisecond.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class Tensor:
    """A tensor of `size` bytes; `grad` bytes is its gradient's size (0: needs none)."""

    __slots__ = ("grad", "held", "last", "outside", "refs", "size")

    def __init__(self, size: float, grad: float) -> None:
        self.size = size
        self.grad = grad
        self.refs = 0
        self.outside = False
        self.last = -1  # the last operation that reads it in forward
        self.held = 0.0  # bytes of its gradient alive in backward


@dataclass
class Op:
    """One operation."""

    out: Tensor
    inputs: tuple[Tensor, ...]
    saved: tuple[Tensor, ...]
    forward: float  # temporary bytes in forward
    backward: float  # temporary bytes in backward
    weight_grad: float  # gradients of parameters that stay
    alias: bool  # the gradient passes through without a copy
    moved: float  # bytes that its kernels read and write in forward


@dataclass(frozen=True)
class Replay:
    """What one layer holds: bytes saved by forward, peaks of forward and of backward (saved bytes included).

    `traffic` is what the kernels of one forward read and write outside matrix products, `operations` how many
    operations that are; `no_grad_peak` is the peak of a forward that saves nothing:
    evaluation, and the first pass of checkpointing.
    """

    saved: float
    traffic: float
    operations: int
    no_grad_peak: float
    forward_peak: float
    backward_peak: float
    weight_grads: float


class Tape:
    """Records operations; `replay` counts."""

    def __init__(self) -> None:
        self.ops: list[Op] = []

    def source(self, size: float, grad: float) -> Tensor:
        """A tensor from outside the layer: it counts only where the layer saves it (size 0: the caller holds it)."""
        tensor = Tensor(size, grad)
        tensor.outside = True
        return tensor

    def op(
        self,
        size: float,
        inputs: Sequence[Tensor],
        saved: Sequence[Tensor | float] = (),
        *,
        grad: float | None = None,
        forward: float = 0.0,
        backward: float = 0.0,
        weight_grad: float = 0.0,
        alias: bool = False,
        keep: bool = False,
        moved: float | None = None,
    ) -> Tensor:
        """Record an operation and return its output.

        Args:
            size: bytes of the output (0 for a view).
            inputs: what it reads; those with a gradient get one in backward.
            saved: tensors it keeps for backward; a number is a tensor of its own of that many bytes.
            grad: bytes of the output's gradient (default: its size).
            forward: bytes needed for a moment in forward.
            backward: the same in backward.
            weight_grad: bytes of parameter gradients that backward leaves behind.
            alias: backward hands its gradient on without a copy (additions, views).
            keep: backward needs the output itself.
            moved: bytes that its kernels read and write in forward, where that is not the inputs and the output once:
                0 for a matrix product, which waits for the cores and not for memory.
        """
        needs = any(t.grad for t in inputs) or weight_grad > 0
        out = Tensor(size, (size if grad is None else grad) if needs else 0.0)
        kept = tuple(s if isinstance(s, Tensor) else Tensor(float(s), 0.0) for s in saved)
        if keep:
            kept = (*kept, out)
        index = len(self.ops)
        for tensor in inputs:
            tensor.last = index
        if moved is None:
            moved = size + forward + sum(t.size for t in inputs)
        self.ops.append(Op(out, tuple(inputs), kept, forward, backward, weight_grad, alias, moved))
        return out

    def replay(self) -> Replay:
        """Run the tape forward and backward."""
        no_grad = self._no_grad_peak()
        live = peak = 0.0
        for index, op in enumerate(self.ops):
            live += op.out.size
            op.out.refs += 1
            for tensor in op.saved:
                if tensor.refs == 0:
                    live += tensor.size
                tensor.refs += 1
            peak = max(peak, live + op.forward)
            for tensor in dict.fromkeys(op.inputs):
                if tensor.last == index and not tensor.outside:
                    live -= self._release(tensor)
        forward_peak = peak
        output = self.ops[-1].out  # the caller holds it through backward: a checkpoint, or the layer above
        saved = live - (output.size if output.refs == 1 else 0.0)
        output.held = output.grad
        live += output.grad
        peak, grads = live, 0.0
        for op in reversed(self.ops):
            new = 0.0
            targets = [t for t in dict.fromkeys(op.inputs) if t.grad]
            if not op.alias:
                new = sum(t.grad for t in targets)
            peak = max(peak, live + new + op.backward + op.weight_grad)
            live += op.weight_grad
            grads += op.weight_grad
            passed = op.out.held
            for tensor in targets:
                if op.alias:
                    # The one buffer moves to the first input; the other branch reads it until its own gradient exists.
                    if tensor.held == 0.0 and passed:
                        tensor.held, passed = passed, 0.0
                elif tensor.held == 0.0:
                    tensor.held = tensor.grad
                    live += tensor.grad
            live -= passed
            op.out.held = 0.0
            for tensor in op.saved:
                live -= self._release(tensor)
        traffic = sum(op.moved for op in self.ops)
        return Replay(saved, traffic, len(self.ops), no_grad, forward_peak, peak, grads)

    def _no_grad_peak(self) -> float:
        live = peak = 0.0
        for index, op in enumerate(self.ops):
            live += op.out.size
            peak = max(peak, live + op.forward)
            live -= sum(t.size for t in dict.fromkeys(op.inputs) if t.last == index and not t.outside)
        return peak

    @staticmethod
    def _release(tensor: Tensor) -> float:
        tensor.refs -= 1
        return tensor.size if tensor.refs == 0 else 0.0
