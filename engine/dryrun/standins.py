"""What a CUDA device does differently from the CPU that the fake tensors are on.

Kernels that exist only there are stood in for by what they allocate. Each entry names the code that it follows.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from engine.dryrun.counter import LiveBytes
from engine.dryrun.spec import Spec

aten = torch.ops.aten


@contextlib.contextmanager
def applied(spec: Spec, counter: LiveBytes, fake: bool) -> Iterator[None]:
    """All stand-ins that this step needs.

    Args:
        spec: `target` decides whether CUDA's ways are followed.
        counter: learns of workspaces.
        fake: whether the tensors are fake (transformers then takes the step for tracing).
    """
    with contextlib.ExitStack() as stack:
        if fake and not spec.packed_mask:
            # fake tensors look like tracing, and for tracing transformers makes a dense mask in case rows are packed
            stack.enter_context(mock.patch("transformers.masking_utils.find_packed_sequence_indices", lambda *_a: None))
        if spec.method == "qlora":
            counter.replacements[torch.ops.bitsandbytes.gemm_4bit.default] = _gemm_4bit
        if spec.target == "cuda":
            counter.workspaces[aten._scaled_dot_product_flash_attention_for_cpu_backward.default] = _flash_backward
            counter.replacements[aten.index.Tensor] = _index
            functional = torch.nn.functional
            stack.enter_context(mock.patch.object(functional, "layer_norm", _layer_norm(functional.layer_norm)))
            stack.enter_context(mock.patch.object(functional, "dropout", _dropout))
            if spec.loss == "chunked":
                stack.enter_context(_triton_loss())
        yield


def _gemm_4bit(a: Any, b: Any, shape: Any, absmax: Any, block: int, kind: str, bias: Any = None,
               absmax_8bit: Any = None, code: Any = None, offset: Any = None) -> Any:  # fmt: skip
    """bitsandbytes' default kernel, step by step: unpack the scales, unpack the matrix, multiply.

    On cards it does this for all but the smallest batches (`_gemm_4bit_use_custom_cuda`).
    """
    ops = torch.ops.bitsandbytes
    if absmax_8bit is not None:
        absmax = ops.dequantize_blockwise.default(absmax_8bit, absmax, code, 256, torch.float32) + offset
    unpacked = ops.dequantize_4bit.default(b, absmax, block, kind, shape, a.dtype)
    return torch.nn.functional.linear(a, unpacked, bias)


def _flash_backward(grad: Any, q: Any, k: Any, *_rest: Any, **_options: Any) -> int:
    """FlashAttention sums dQ in fp32, and dK and dV of shared heads at full width (flash_api.cpp, mha_bwd)."""
    sums = 4 * q.numel() + 4 * q.numel() // q.shape[-1]
    shared = 2 * q.numel() * q.element_size() if q.shape[1] != k.shape[1] else 0
    return int(sums + shared)


def _index(tensor: Any, indices: Any) -> Any:
    """`hidden[mask]` where every position counts: the size of the result depends on data that is not there."""
    mask = indices[0] if len(indices) == 1 else None
    if mask is None or mask.dtype != torch.bool:
        return NotImplemented
    positions = [torch.empty(mask.numel(), dtype=torch.int64) for _axis in mask.shape]
    del positions
    return tensor.reshape(-1, *tensor.shape[mask.ndim :]).clone()


def _dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """CUDA's kernel keeps a mask of one byte a value; the CPU multiplies by a noise of the input's type."""
    return torch.native_dropout(input, p, training)[0] if training and p > 0 else input


def _layer_norm(original: Any) -> Any:
    """Autocast computes it in fp32 on CUDA, and leaves it alone on the CPU."""

    def layer_norm(input: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
        if not torch.is_autocast_enabled("cpu"):
            return original(input, shape, weight, bias, eps)
        wide = [None if t is None else t.float() for t in (input, weight, bias)]
        return original(wide[0], shape, wide[1], wide[2], eps)

    return layer_norm


class _Kernel:
    """A Triton kernel that works in place."""

    def __getitem__(self, _grid: Any) -> Any:
        return lambda *_args, **_options: None


@contextlib.contextmanager
def _triton_loss() -> Iterator[None]:
    """TRL folds each tile of logits in place on CUDA, and sums the gradients inside cuBLAS."""
    import trl.kernels.chunked_logprob
    import trl.trainer.utils  # noqa: F401

    chunked, utils = sys.modules["trl.kernels.chunked_logprob"], sys.modules["trl.trainer.utils"]
    with contextlib.ExitStack() as stack:
        for module in (chunked, utils):
            stack.enter_context(mock.patch.object(module, "_use_triton", lambda _device: True))
        for name in ("_forward_kernel", "_backward_kernel"):
            stack.enter_context(mock.patch.object(chunked, name, _Kernel()))
        stack.enter_context(mock.patch.object(chunked, "_addmm_fp32", lambda *_args: None))
        stack.enter_context(
            mock.patch.object(chunked, "triton", SimpleNamespace(cdiv=lambda a, b: -(-a // b)), create=True)
        )
        yield
