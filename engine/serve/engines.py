"""The programs that serve: which one there is, and how it is called."""

from __future__ import annotations

import math
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from engine.errors import FtuiError
from engine.process.daemon import own_environment
from engine.serve.fit import Fit, language_part
from engine.serve.target import Target
from engine.text import _

Name = Literal["vllm", "transformers"]
NAMES: tuple[Name, ...] = ("vllm", "transformers")
NEEDS = {"vllm": ("vllm",), "transformers": ("transformers", "fastapi", "uvicorn")}
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # what vLLM takes for --max-lora-rank
CONVERSATIONS = 16  # of full length at once, that the host's memory holds a cache for
START_S = {"vllm": 1800.0, "transformers": 900.0}  # a 70B model is read from a slow disk in half an hour


@dataclass(frozen=True)
class Engine:
    """A serving program and the interpreter of its environment."""

    name: Name
    python: str


def choose(wanted: Name | None) -> Engine:
    """vLLM where it is installed, else transformers.

    Args:
        wanted: the engine that the user asks for.

    Raises:
        FtuiError: it, or none, is installed.
    """
    from engine import settings

    candidates = {"vllm": settings.load().vllm_python or settings.training_python(),
                  "transformers": settings.training_python()}  # fmt: skip
    for name in (wanted,) if wanted else NAMES:
        if not missing(candidates[name], NEEDS[name]):
            return Engine(name, candidates[name])
    if wanted == "vllm":
        raise FtuiError(
            _("vLLM is not installed in {python}").format(python=candidates["vllm"]),
            where="vllm_python",
            fix=_("install it in an environment of its own and name its python in the settings (`vllm_python: …`)"),
            kind="no_vllm",
        )
    lacking = ", ".join(missing(candidates["transformers"], NEEDS["transformers"]))
    raise FtuiError(
        _("nothing to serve with: {python} lacks {packages}").format(
            python=candidates["transformers"], packages=lacking
        ),
        fix=_("`pip install 'transformers[serving]'` there, or install vLLM and set `vllm_python`"),
        kind="no_engine",
    )


def require(engine: Engine, config: dict[str, Any]) -> None:
    """Whether an engine can load a model's kind of weights; vLLM brings what it needs along.

    Raises:
        FtuiError: a package is missing.
    """
    quantization = config.get("quantization_config")
    method = quantization.get("quant_method") if isinstance(quantization, dict) else None
    if engine.name != "transformers" or method != "compressed-tensors":
        return
    if missing(engine.python, ("compressed_tensors",)):
        raise FtuiError(
            _("this model is stored as FP8, and {python} lacks compressed-tensors").format(python=engine.python),
            where="compressed-tensors",
            fix=_("`pip install --no-deps compressed-tensors loguru` there, or serve it with vLLM"),
            kind="no_engine",
        )


@cache
def missing(python: str, packages: tuple[str, ...]) -> tuple[str, ...]:
    """Which of the packages an interpreter does not find; all of them where it does not run."""
    code = "import importlib.util as u, sys; print(*(p for p in sys.argv[1:] if u.find_spec(p) is None))"
    try:
        done = subprocess.run(
            [python, "-c", code, *packages],
            env=own_environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return packages
    return tuple(done.stdout.split())


def command(
    engine: Engine,
    target: Target,
    *,
    host: str,
    port: int,
    dtype: str,
    fit: Fit,
    on_cpu: bool,
    extra: list[str] | None = None,
) -> list[str]:
    """The argument list of a server; the key comes through the environment, never here."""
    if engine.name == "transformers":
        return [
            engine.python, "-m", "engine.serve.transformers_server", str(target.model),
            "--served-model-name", target.served, "--host", host, "--port", str(port), "--dtype", dtype,
            *(["--device", "cpu"] if on_cpu else []), *(extra or []),
        ]  # fmt: skip
    argv = [
        engine.python, "-m", "vllm.entrypoints.openai.api_server",
        "--model", str(target.model), "--served-model-name", target.served,
        "--host", host, "--port", str(port),
        "--dtype", dtype, "--max-model-len", str(fit.max_length),
    ]  # fmt: skip
    if fit.tensor_parallel > 1:
        argv += ["--tensor-parallel-size", str(fit.tensor_parallel)]
    if target.adapters:
        highest = max(adapter.rank for adapter in target.adapters)
        argv += ["--enable-lora", "--max-lora-rank", str(next((r for r in RANKS if r >= highest), highest))]
        argv += ["--max-loras", str(min(len(target.adapters), 8))]
        argv += ["--lora-modules", *(f"{adapter.name}={adapter.path}" for adapter in target.adapters)]
    if on_cpu:
        argv.append("--enforce-eager")
    return [*argv, *(extra or [])]


def environment(
    engine: Engine, *, gpus: tuple[str, ...], fit: Fit, base: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The environment of a server, without its key."""
    env = own_environment(base)
    env.update(
        HF_HUB_OFFLINE="1",  # what is served is here: no start waits for the network
        HF_HUB_DISABLE_TELEMETRY="1",
        VLLM_NO_USAGE_STATS="1",
        DO_NOT_TRACK="1",
        TOKENIZERS_PARALLELISM="false",
        CUDA_DEVICE_ORDER="PCI_BUS_ID",
        CUDA_VISIBLE_DEVICES=",".join(gpus),
    )
    if not gpus:
        wanted = CONVERSATIONS * fit.max_length * fit.token_bytes  # vLLM takes all of it at its start
        gib = min(math.ceil(wanted / 2**30), (fit.room - fit.weights) // 2**30)
        env.setdefault("VLLM_CPU_KVCACHE_SPACE", str(max(1, gib)))
    if engine.name == "vllm":  # an environment of its own: nothing of ours belongs into it
        env.pop("PYTHONPATH", None)
        env["PATH"] = os.pathsep.join([os.path.dirname(engine.python), env.get("PATH", "")])  # noqa: PTH120
    return env


def key_variable(engine: Engine) -> str:
    """The variable that carries the key."""
    return "VLLM_API_KEY" if engine.name == "vllm" else "FTUI_SERVE_KEY"


def dtype_of(config: dict[str, Any], *, on_cpu: bool) -> str:
    """The type to serve in: the model's own; float32 weights become bfloat16 on a GPU."""
    text = language_part(config)
    names = (config.get("dtype"), config.get("torch_dtype"), text.get("dtype"), text.get("torch_dtype"))
    own = next((str(name) for name in names if name), "bfloat16").removeprefix("torch.")
    return "bfloat16" if own == "float32" and not on_cpu else own
