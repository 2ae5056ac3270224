"""A plugin of the ranks for tests: FSDP2 and ZeRO between processes on the CPU, which the libraries leave to GPUs.

accelerate makes FSDP of several ranks on accelerators only; on CPUs its plugin is silently ignored and the run is DDP.
DeepSpeed compiles a kernel for shared memory between CPU ranks before its first step, which takes minutes and is not
needed: gloo does the same.
"""

from __future__ import annotations

import os
from typing import Any

from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType

_original = AcceleratorState.__init__


def _with_fsdp(self: Any, *args: Any, fsdp_plugin: Any = None, **options: Any) -> None:
    _original(self, *args, fsdp_plugin=fsdp_plugin, **options)
    if fsdp_plugin is not None and self.distributed_type == DistributedType.MULTI_CPU:
        self.distributed_type = PartialState._shared_state["distributed_type"] = DistributedType.FSDP
        if self._mixed_precision != "no":
            fsdp_plugin.set_mixed_precision(self._mixed_precision)
        self.fsdp_plugin = fsdp_plugin


AcceleratorState.__init__ = _with_fsdp  # type: ignore[method-assign]

if os.environ.get("FTUI_TEST_ZERO"):
    import deepspeed.comm.torch

    deepspeed.comm.torch.build_shm_op = lambda: None
    _plain = PartialState.__init__

    def _with_deepspeed(self: Any, *args: Any, **options: Any) -> None:
        """Let DeepSpeed know the ranks before a model is loaded into its shards, as accelerate does on GPUs."""
        _plain(self, *args, **options)
        if self.distributed_type == DistributedType.MULTI_CPU:
            deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)

    PartialState.__init__ = _with_deepspeed  # type: ignore[method-assign]
