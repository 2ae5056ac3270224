"""What the libraries have no name for: products in FP8, and Muon."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.heavy
ARGS = SimpleNamespace(learning_rate=0.01, weight_decay=0.1, adam_beta1=0.9, adam_beta2=0.95, adam_epsilon=1e-8)


def tiny() -> Any:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    shape = {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 96,
    }  # fmt: skip
    return AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen3", **shape))


def train(model: Any, optimizer: Any, steps: int) -> list[float]:
    import torch

    rows = torch.arange(64).reshape(2, 32) % 90
    found = []
    for _step in range(steps):
        loss = model(input_ids=rows, labels=rows).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(float(loss))
    return found


def test_muon_takes_the_matrices_and_adamw_the_rest() -> None:
    import torch

    from engine.train import muon

    model = tiny()
    optimizer = muon.create(model, ARGS)
    inner, rest = optimizer.parts
    assert isinstance(inner, torch.optim.Muon) and isinstance(rest, torch.optim.AdamW)
    tables = {id(model.get_input_embeddings().weight), id(model.get_output_embeddings().weight)}
    assert tables <= {id(p) for group in rest.param_groups for p in group["params"]}
    assert all(p.ndim == 2 for group in inner.param_groups for p in group["params"])
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(model.parameters()))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    first = train(model, optimizer, 6)
    assert first[-1] < first[0]
    scheduler.step()
    assert inner.param_groups[0]["lr"] == rest.param_groups[0]["lr"] == 0.005


def test_muon_goes_on_from_its_state(tmp_path: Path) -> None:
    import torch

    from engine.train import muon

    model = tiny()
    optimizer = muon.create(model, ARGS)
    train(model, optimizer, 3)
    torch.save((model.state_dict(), optimizer.state_dict()), tmp_path / "state.pt")
    whole = train(model, optimizer, 3)
    again = tiny()
    weights, states = torch.load(tmp_path / "state.pt", weights_only=True)
    again.load_state_dict(weights)
    other = muon.create(again, ARGS)
    other.load_state_dict(states)
    assert train(again, other, 3) == whole
    assert other.param_groups[0] is other.parts[0].param_groups[0]


def test_fp8_is_refused_where_no_card_has_it() -> None:
    import torch

    from engine.errors import UsageError
    from engine.train import fp8

    with pytest.raises(UsageError, match="needs a GPU"):
        fp8.refuse(torch.device("cpu"))


def test_liger_without_its_package_or_its_kernels() -> None:
    from engine.errors import UsageError
    from engine.train import model

    with pytest.raises(UsageError) as caught:
        model._refuse_liger("no such model")
    installed = importlib.util.find_spec("liger_kernel") and importlib.util.find_spec("triton")
    assert caught.value.kind == ("not_supported" if installed else "missing_package")


def test_fp8_products(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torchao")
    import torch

    from engine.train import fp8

    model = tiny().bfloat16()
    rows = torch.arange(64).reshape(2, 32) % 90
    before = model(input_ids=rows, labels=rows).loss
    assert fp8.convert(model, emulate=True) == 2 * 7
    assert type(model.get_output_embeddings()) is torch.nn.Linear
    after = model(input_ids=rows, labels=rows).loss
    after.backward()
    assert float(after) != float(before) and float(after) == pytest.approx(float(before), rel=0.05)
    assert all(parameter.grad is not None for parameter in model.parameters())
