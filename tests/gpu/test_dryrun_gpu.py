"""On a real GPU: what TRL's trainer allocates against its dry run for CUDA. Skipped without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.hardware.gpus import Probe, visible

pytestmark = pytest.mark.heavy
WORKSPACE = 40 << 20  # cuBLAS' own, which no step on fake tensors shows


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with Probe() as probe:
        if not visible(probe.list()):
            pytest.skip("no GPU")
    import torch

    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    from tests.support.dryrun import SMALL, save_model

    return save_model(SMALL, tmp_path_factory.mktemp("gpu") / "small")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_gpu_holds_what_the_dry_run_says(small: Path, tmp_path: Path, method: str, checkpointing: bool) -> None:
    import torch

    from engine.dryrun import step
    from engine.dryrun.spec import Spec
    from tests.support.dryrun import SMALL, cuda_peak

    spec = Spec(
        SMALL, method, 4, 1024, checkpointing=checkpointing, optim="adamw_torch_fused",
        bf16_master="fp32" if method == "full" else "bf16", lora_dtype="bf16" if method == "qlora" else "fp32",
    )  # fmt: skip
    real = cuda_peak(spec, small, tmp_path)
    torch.cuda.empty_cache()
    dry = max(sum(parts.values()) for parts in step.measure(spec).values())
    assert dry * 0.98 <= real <= dry * 1.03 + WORKSPACE
