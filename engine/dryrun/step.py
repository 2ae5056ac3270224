"""One training step, counted: forward and loss, backward, optimizer; twice, because state appears in the first."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from engine.dryrun import build, optimizers, standins
from engine.dryrun.counter import LiveBytes
from engine.dryrun.spec import Spec

CUDA_BLOCK = 512  # the caching allocator hands out multiples of it

Peaks = dict[str, dict[str, float]]


def measure(spec: Spec, say: Callable[[str], None] = lambda _stage: None) -> Peaks:
    """The peaks of one step of fake tensors, by phase and part (bytes)."""
    with build.fake_ranks(spec.ranks) if spec.sharding == "fsdp2" else contextlib.nullcontext():
        return _measure(spec, say)


def _measure(spec: Spec, say: Callable[[str], None]) -> Peaks:
    say("build")
    model = build.on_meta(spec)
    if spec.sharding == "fsdp2":
        build.shard(model, spec)
    counter = LiveBytes(CUDA_BLOCK if spec.target == "cuda" else 1)
    with FakeTensorMode(allow_non_fake_inputs=True), counter, standins.applied(spec, counter, fake=True):
        build.fill(model, lambda t: torch.empty(t.shape, dtype=t.dtype, device="cpu"))
        return run(model, spec, counter, say)


def run(model: Any, spec: Spec, counter: LiveBytes, say: Callable[[str], None] = lambda _stage: None) -> Peaks:
    """Train two steps of a model whose tensors the counter knows, and give the second one's peaks."""
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = optimizers.make(spec, model, counter)
    ids = torch.ones((spec.rows, spec.length), dtype=torch.int64)
    batch = {"input_ids": ids, "labels": torch.ones_like(ids)}
    if spec.sharding == "ddp":
        counter.track(torch.empty(sum(p.numel() * p.element_size() for p in trained), dtype=torch.uint8), "transients")
    for parameter in trained:
        parameter.register_post_accumulate_grad_hook(lambda p: counter.track(p.grad, "gradients"))
    forward = _mixed_precision(model) if spec.autocast else model
    with _watched(model, counter):
        for number in (1, 2):
            say(f"step{number}")
            counter.forget()
            for _micro in range(min(2, spec.accumulation)):
                _forward_backward(forward, spec, batch, counter)
            counter.enter("step", "optimizer" if number == 1 else "transients")
            torch.nn.utils.clip_grad_norm_(trained, 1.0, foreach=spec.target == "cuda" or None)
            optimizer.step()
            optimizer.zero_grad()
    counter.peaks.pop("between", None)
    return {phase: {k: float(v) for k, v in parts.items()} for phase, (_total, parts) in counter.peaks.items()}


def _forward_backward(forward: Callable[..., Any], spec: Spec, batch: dict[str, Any], counter: LiveBytes) -> None:
    counter.enter("forward", "activations")
    loss = _loss(forward, spec, batch)
    counter.enter("loss", "logits")
    loss.backward()
    counter.enter("between", "transients")


def _loss(forward: Callable[..., Any], spec: Spec, batch: dict[str, Any]) -> torch.Tensor:
    """As TRL's and transformers' trainers compute it; the outputs go when this returns."""
    count = spec.rows * spec.length
    inputs: dict[str, Any] = {"input_ids": batch["input_ids"], "labels": batch["labels"], "use_cache": False}
    if spec.loss == "chunked":
        outputs = forward(**inputs, fused_lm_head=True)
        return -outputs.log_probs.sum() / count
    loss: torch.Tensor = forward(**inputs, num_items_in_batch=count).loss
    return loss


def _mixed_precision(model: Any) -> Callable[..., Any]:
    """What accelerate makes of a model for bf16: autocast around its forward, fp32 outputs."""
    from accelerate.utils import convert_outputs_to_fp32

    def forward(**inputs: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(**inputs)

    wrapped: Callable[..., Any] = convert_outputs_to_fp32(forward)
    return wrapped


def decoder_layers(model: nn.Module) -> nn.ModuleList:
    """The list of decoder layers.

    Raises:
        Unsupported: the model has none.
    """
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m)]
    if not lists:
        raise build.Unsupported("the model has no list of decoder layers")
    return max(lists, key=lambda found: sum(p.numel() for p in found.parameters()))


@contextlib.contextmanager
def _watched(model: Any, counter: LiveBytes) -> Iterator[None]:
    """Tell the counter where forward and backward are.

    Inside one stretch every moment grows alike with the number of layers, so that its peak is a straight line over
    them (`depth`). Backward goes from the top layer, where all activations exist, to the bottom layer and the
    embedding, where all gradients do; what is between peaks above both only if layers differ.
    """
    layers = decoder_layers(model)
    top, bottom = len(layers) - 1, 0
    handles = []

    def watch(hidden: Any, phase: str) -> None:
        """Enter `phase` when backward reaches this tensor."""
        hidden = hidden[0] if isinstance(hidden, tuple) else hidden
        if isinstance(hidden, torch.Tensor) and hidden.requires_grad:
            hidden.register_hook(lambda _gradient: counter.enter(phase, "activations"))

    def leave(index: int) -> Callable[..., None]:
        phase = {top - 1: "middle"} | {bottom: "end"} | {top: "backward"}

        def hook(_module: Any, _inputs: Any, output: Any) -> None:
            watch(output, phase[index])
            if index == top:
                counter.enter("head", "logits")

        return hook

    def begin(_module: Any, inputs: Any) -> None:
        watch(inputs, "embedding")

    handles.append(layers[bottom].register_forward_pre_hook(begin))
    for index in {bottom, max(bottom, top - 1), top}:
        handles.append(layers[index].register_forward_hook(leave(index)))
    with contextlib.ExitStack() as stack:
        from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

        for name in ("unshard", "wait_for_unshard", "post_backward"):
            stack.enter_context(_labelled(FSDPParamGroup, name, counter))
        yield
    for handle in handles:
        handle.remove()


@contextlib.contextmanager
def _labelled(owner: Any, name: str, counter: LiveBytes) -> Iterator[None]:
    """What this method allocates is a transient: gathered weights, gradients on their way."""
    original = getattr(owner, name)

    def method(*args: Any, **kwargs: Any) -> Any:
        with counter.labelled("transients"):
            return original(*args, **kwargs)

    setattr(owner, name, method)
    try:
        yield
    finally:
        setattr(owner, name, original)
