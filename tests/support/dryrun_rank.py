"""One of two gloo ranks of a real FSDP2 step: `torchrun ... dryrun_rank.py SPECS FOLDER OUT`; rank 0 writes the peaks.

accelerate makes FSDP of several ranks on accelerators only; on CPUs a plugin is silently ignored and the run is DDP.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType

from engine.dryrun.spec import Spec
from tests.support.dryrun import sharded_peak

original = AcceleratorState.__init__


def with_fsdp(self: Any, *args: Any, fsdp_plugin: Any = None, **options: Any) -> None:
    """Let two CPU ranks be FSDP."""
    original(self, *args, fsdp_plugin=fsdp_plugin, **options)
    if fsdp_plugin is not None and self.distributed_type == DistributedType.MULTI_CPU:
        self.distributed_type = PartialState._shared_state["distributed_type"] = DistributedType.FSDP
        fsdp_plugin.set_mixed_precision(self._mixed_precision)
        self.fsdp_plugin = fsdp_plugin


AcceleratorState.__init__ = with_fsdp  # type: ignore[method-assign]


def main() -> None:
    """Train each spec for a few steps."""
    specs, folder, out = json.loads(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    peaks = [sharded_peak(Spec.from_json(values), folder, out) for values in specs]
    if os.environ["RANK"] == "0":
        (out / "peaks.json").write_text(json.dumps(peaks))


if __name__ == "__main__":
    main()
