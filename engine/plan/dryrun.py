"""The second tier: the real training step on fake tensors, run in a process of its own and remembered.

The closed form answers at once and knows every sharding; the dry run takes seconds and follows the code that will
train. Both take the same request and count the same phases.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.dryrun import depth
from engine.dryrun.spec import Spec
from engine.errors import FtuiError, UsageError
from engine.files import read_json, write_json
from engine.plan import models, on_cpu, optimizers, shapes
from engine.plan.memory import PARTS, Phase
from engine.plan.plan import Result
from engine.plan.request import Request
from engine.text import _

FORMAT = 1
TIMEOUT = 1200.0
MARGIN = 0.03  # of the peak: what CUDA's libraries hold besides is not in a step that runs on no GPU
# The versions whose fake steps were compared with real ones (constraints.txt). With others the child first compares.
TESTED = {"torch": "2.13.0", "transformers": "5.24.0", "trl": "1.16.0", "peft": "0.21.2", "accelerate": "1.15.0"}
WATCHED = (*TESTED, "bitsandbytes")
OPTIMIZERS = (
    "adamw_torch", "adamw_torch_fused", "sgd", "rmsprop", "adafactor", "adamw_bnb_8bit", "paged_adamw_8bit",
    "paged_adamw_32bit",
)  # fmt: skip
# What a config.json says about its file, its making or its own quantisation, none of which shapes a step.
NOT_SHAPE = (
    "architectures",
    "auto_map",
    "torch_dtype",
    "dtype",
    "transformers_version",
    "quantization_config",
    "_name_or_path",
)


@dataclass(frozen=True)
class DryRun:
    """What the real step held, phase by phase."""

    phases: tuple[Phase, ...]
    depths: tuple[int, ...]  # layers that were run; two: the rest follows from them
    layers: int
    seconds: float
    versions: dict[str, str | None]
    notes: tuple[str, ...] = ()
    cached: bool = False

    @property
    def peak(self) -> Phase:
        """The phase that decides."""
        return max(self.phases, key=lambda phase: phase.total)

    def needs(self, result: Result) -> float:
        """The least a card must have: the closed form's overhead on top of this peak."""
        return result.device.needs - result.memory.peak.total + self.peak.total

    def verdict(self, result: Result) -> str | None:
        """`fits`, `tight` within its margin, or `no`."""
        capacity = result.context.capacity
        if capacity is None:
            return None
        margin = MARGIN * self.peak.total
        needs = self.needs(result)
        return "fits" if needs + margin <= capacity else "no" if needs - margin > capacity else "tight"

    def to_json(self, result: Result) -> dict[str, Any]:
        """The dry run as `ftui plan --json` prints it, GB."""
        peak = self.peak
        return {
            "allocated_gb": round(peak.total / 1e9, 3),
            "needs_gb": round(self.needs(result) / 1e9, 3),
            "verdict": self.verdict(result),
            "difference": round(result.memory.peak.total / peak.total - 1, 4),
            "phase": peak.name,
            "breakdown": {part: round(size / 1e9, 3) for part, size in peak.parts.items()},
            "phases": {phase.name: round(phase.total / 1e9, 3) for phase in self.phases},
            "layers": self.layers,
            "depths": list(self.depths),
            "seconds": self.seconds,
            "cached": self.cached,
            "versions": self.versions,
            "notes": list(self.notes),
        }


def specification(r: Request, config: dict[str, Any], limit: float | None = None) -> tuple[Spec, tuple[str, ...]]:
    """What the child has to run, and remarks about it.

    Args:
        r: a request whose sharding is decided.
        config: the fields of the model's config.json.
        limit: allocated bytes at which the card would be full.

    Raises:
        UsageError: something that only the closed form knows (kind `no_dry_run`).
    """
    optim = optimizers.SYNONYMS.get(r.optim.strip().lower(), r.optim.strip().lower())
    reasons = {
        _("'{framework}' is another trainer").format(framework=r.framework): r.framework != "hf",
        _("DPO steps are not run dry"): r.task == "dpo",
        _("'{sharding}' is closed form only").format(sharding=r.sharding): r.sharding not in ("none", "ddp", "fsdp2"),
        _("CPU offload cannot be told from the card here"): r.cpu_offload,
        _("Liger's kernels need a GPU"): r.loss == "liger" or r.fused_kernels,
        _("torch.compile and FP8 need a GPU"): r.compile or r.fp8,
        _("an optimizer inside backward is not the trainer's"): r.optimizer_in_bwd,
        _("'{quant}' weights are closed form only").format(quant=r.quant): r.method == "qlora"
        and r.quant not in ("nf4", "nf4-dq", "fp4"),
        _("the optimizer '{name}' is closed form only").format(name=optim): optim not in OPTIMIZERS,
    }
    for reason, applies in reasons.items():
        if applies:
            raise UsageError(
                _("this cannot be run dry: {reason}").format(reason=reason),
                where="--dry-run-step",
                fix=_("the closed form stands alone: leave --dry-run-step out"),
                kind="no_dry_run",
            )
    notes = []
    if r.sharding == "ddp":
        notes.append(_("DDP's buckets are counted as one copy of the gradients"))
    attention = r.attn_implementation if r.attn_implementation in ("eager", "sdpa") else "flash"
    if attention == "flash":
        notes.append(_("run with sdpa, which holds what {name} does").format(name=r.attn_implementation))
    if r.sharding == "fsdp2" and r.accumulation > 1:
        notes.append(_("gradients are reduced after each micro-batch (sync_each_batch), not kept whole until the last"))
    packed = r.packing
    return Spec(
        config={k: v for k, v in config.items() if k not in NOT_SHAPE},
        method=r.method,
        rows=1 if packed else r.per_device_train_batch_size,
        length=r.longest * (r.per_device_train_batch_size if packed else 1),
        target="cpu" if r.gpu == on_cpu.CPU else "cuda",
        autocast=r.gpu != on_cpu.CPU,
        bf16_master=r.bf16_master,
        lora_r=r.lora_r,
        lora_dropout=r.lora_dropout,
        lora_targets=_targets(r),
        lora_modules_to_save=r.lora_modules_to_save,
        lora_dtype=r.lora_dtype,
        use_dora=r.use_dora,
        kbit_prepare=r.kbit_prepare,
        quant=r.quant,
        optim=optim,
        accumulation=min(2, r.accumulation),  # the second micro-batch meets the first one's gradients; more add none
        checkpointing=r.gradient_checkpointing,
        attention=attention,
        packed_mask=packed and attention == "sdpa",
        loss=r.loss,
        sharding=r.sharding,
        ranks=r.num_gpus,
        reshard=r.reshard_after_forward,
        untie=r.untie,
        limit=None if limit is None else round(limit),
    ), tuple(notes)


def _targets(r: Request) -> tuple[str, ...]:
    """The adapter's targets by the names that the model's code has; none: all linear ones, as PEFT finds them."""
    if r.lora_targets == shapes.target_names(r.shape, None):
        return ()
    other = shapes.other_names(r.shape)
    return tuple(sorted({*r.lora_targets, *(name for name, ours in other.items() if ours in r.lora_targets)}))


def run(result: Result, config: dict[str, Any] | None, folder: Path, say: Callable[[str], None]) -> DryRun:
    """Run a plan's step dry, or remember how that went.

    Args:
        result: the closed form's answer.
        config: the request's own config, when it gave one.
        folder: the cache (`<home>/cache/dryrun`).
        say: takes progress for people.

    Raises:
        UsageError: what cannot be run dry, or an architecture that is not known.
        FtuiError: the versions do not agree with real steps, or the child failed; the log is named.
    """
    r, capacity = result.request, result.context.capacity
    limit = None if capacity is None else capacity - (result.device.needs - result.memory.peak.total)
    spec, notes = specification(r, models.config(r.model, config), limit)
    versions = _versions()
    key = _key(spec, versions)
    found = _remembered(folder / f"{key}.json", limit)
    cached = found is not None
    if found is None:
        folder.mkdir(parents=True, exist_ok=True)
        differ = {name: versions[name] for name, tested in TESTED.items() if _minor(versions[name]) != _minor(tested)}
        found = _child(spec, bool(differ), differ, folder / f"{key}.log", say)
        write_json(folder / f"{key}.json", {"format": FORMAT, "versions": versions, "spec": spec.to_json()} | found)
    if found["attention"] == "eager" and spec.attention == "sdpa":
        notes = (*notes, _("transformers has no sdpa for this architecture: it runs with eager attention"))
    return DryRun(
        phases=tuple(Phase(name, {p: parts.get(p, 0.0) for p in PARTS}) for name, parts in found["phases"].items()),
        depths=tuple(found["depths"]),
        layers=spec.layers,
        seconds=found["seconds"],
        versions=versions,
        notes=notes,
        cached=cached,
    )


def _minor(version: str | None) -> list[str]:
    return (version or "").split("+")[0].split(".")[:2]


def _versions() -> dict[str, str | None]:
    from engine import settings
    from engine.hardware import versions

    python = settings.training_python()
    try:
        found: dict[str, str | None] = versions.packages(WATCHED, python)["packages"]
    except OSError as error:
        raise FtuiError(
            _("the training Python cannot be started: {reason}").format(reason=str(error)[:200]),
            where=python,
            fix=_("`ftui doctor` says what it lacks"),
        ) from error
    missing = [name for name in TESTED if found.get(name) is None]
    if missing:
        raise FtuiError(
            _("the training Python lacks {names}").format(names=", ".join(missing)),
            where=python,
            fix=_("`ftui doctor` says how to install them"),
            kind="missing_package",
        )
    return found


def _key(spec: Spec, versions: dict[str, str | None]) -> str:
    """What the answer depends on: the step, the libraries, and our own code."""
    digest = hashlib.sha256()
    for file in sorted(Path(depth.__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    inputs = {k: v for k, v in spec.to_json().items() if k != "limit"}
    digest.update(json.dumps([FORMAT, inputs, versions], sort_keys=True).encode())
    return digest.hexdigest()[:24]


def _remembered(file: Path, limit: float | None) -> dict[str, Any] | None:
    """An earlier answer; one from two depths only where that is precise enough for this limit."""
    found: Any = read_json(file)
    try:
        phases, depths, seconds = found["phases"], found["depths"], float(found["seconds"])
        largest = max(sum(parts.values()) for parts in phases.values())
        current = found["format"] == FORMAT
        attention = str(found["attention"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None  # absent, or not ours
    if not current or (len(depths) == 2 and depth.close(largest, limit)):
        return None
    return {"phases": phases, "depths": depths, "seconds": seconds, "attention": attention}


def _stages() -> dict[str, str]:
    return {
        "import": _("dry run: loading torch, transformers and TRL"),
        "canary": _("dry run: other versions than the tested ones: comparing a small model with a real step"),
        "build": _("dry run: building the model ({layers} layers)"),
        "step1": _("dry run: first step ({layers} layers)"),
        "step2": _("dry run: second step ({layers} layers)"),
    }


def _child(
    spec: Spec, canary: bool, differ: dict[str, str | None], log: Path, say: Callable[[str], None]
) -> dict[str, Any]:
    """Start the child, pass its progress on, and give its result."""
    answer: dict[str, Any] | None = None
    stages, started = _stages(), time.monotonic()
    with _started({"spec": spec.to_json(), "canary": canary}, log) as process:
        assert process.stdout is not None
        for line in process.stdout:
            try:
                event = json.loads(line)
            except ValueError:
                continue  # a library that prints
            if event.get("event") == "progress" and event.get("stage") in stages:
                say(stages[event["stage"]].format(layers=event["layers"]))
            elif event.get("event") in ("result", "error"):
                answer = event
        code = process.wait()
    if answer is None or code:
        raise _failed(code, log, time.monotonic() - started)
    if answer["event"] == "error":
        raise _refused(answer, differ, log)
    return {key: answer[key] for key in ("phases", "depths", "seconds", "attention")}


@contextlib.contextmanager
def _started(request: dict[str, Any], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The child, which never outlives this call nor this process."""
    from engine import settings
    from engine.process import die_with_parent

    environment = {
        **os.environ, "PYTHONSAFEPATH": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false", "ACCELERATE_MIXED_PRECISION": "bf16",
    }  # fmt: skip
    parent = os.getpid()
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [settings.training_python(), "-m", "engine.dryrun"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            preexec_fn=lambda: die_with_parent(parent=parent),  # noqa: PLW1509 - started from the command's main thread
        )
    timer = threading.Timer(TIMEOUT, process.kill)
    try:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(request).encode())
            process.stdin.close()
        timer.start()
        yield process
    finally:
        timer.cancel()
        if process.poll() is None:
            process.kill()
            process.wait()


def _failed(code: int, log: Path, seconds: float) -> FtuiError:
    """The child ended without an answer: by a signal (torch aborts natively), by an exception, or by its time limit."""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    if seconds >= TIMEOUT:
        what = _("the dry run took longer than {minutes} minutes").format(minutes=round(TIMEOUT / 60))
    elif code < 0:
        what = _("the dry run was ended by signal {number}").format(number=-code)
    else:
        reason = lines[-1][:200] if lines else ""
        what = _("the dry run failed with exit code {code}: {reason}").format(code=code, reason=reason)
    return FtuiError(
        what, where=str(log), fix=_("the closed form above stands; the log says more"), kind="dry_run_failed"
    )


def _refused(answer: dict[str, Any], differ: dict[str, str | None], log: Path) -> FtuiError:
    if answer["kind"] == "versions":
        names = ", ".join(f"{name} {found} ({TESTED[name]})" for name, found in differ.items())
        return FtuiError(
            _("with these versions a dry step differs from a real one ({text}): {names}").format(
                text=answer["text"], names=names
            ),
            where=str(log),
            fix=_("install the tested versions (in parentheses) or use the closed form"),
            kind="dry_run_versions",
        )
    return UsageError(
        _("this cannot be run dry: {reason}").format(reason=str(answer["text"])[:300]),
        where="--dry-run-step",
        fix=_("the closed form stands alone: leave --dry-run-step out"),
        kind="no_dry_run",
    )
