"""The models of an evaluation: the base, loaded once, and the tuned one, which may be an adapter on it. Loads torch."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from engine.errors import FtuiError, UsageError
from engine.text import _
from engine.train import model as training
from engine.train.job import Job
from engine.train.rank import Rank
from engine.workspace import RunFolder


def make_job(recipe: dict[str, Any], run: str) -> Job:
    """The recipe as the training's own code takes it, for one process."""
    return Job(Rank(RunFolder(Path(run)), 0, 0, 1, 1, None), recipe)


class Models:
    """Gives each role's model; at most one set of weights is in memory, and an adapter's base is not loaded twice.

    Args:
        job: how models are loaded: type, quantization, attention.
        roles: for "base" and "tuned" the folder of a model, and an adapter's or None.
        vocabulary: the number of tokens that the tokenizer knows.
    """

    def __init__(self, job: Job, roles: dict[str, dict[str, Any]], vocabulary: int) -> None:
        self.job = job
        self.roles = roles
        self.vocabulary = vocabulary
        self._path: str | None = None
        self._model: Any = None
        self._adapter: str | None = None

    @property
    def autocast(self) -> torch.dtype | None:
        """The type that the trainer computes in where it is not the weights' own."""
        on_gpu = training.device(self.job).type == "cuda"
        wanted = self.job.recipe.get("bf16")
        if wanted is None and not self.job.recipe.get("fp16"):
            wanted = on_gpu and torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if wanted else torch.float16 if self.job.recipe.get("fp16") and on_gpu else None

    @contextlib.contextmanager
    def use(self, role: str) -> Iterator[Any]:
        """The model of a role, in evaluation mode.

        Raises:
            UsageError: it cannot be loaded, or the adapter is of another base.
        """
        path, adapter = self.roles[role]["path"], self.roles[role].get("adapter")
        if self._path != path or (self._adapter not in (None, adapter) and adapter is not None):
            self._load(path)
        if adapter is not None and self._adapter is None:
            self._attach(adapter)
        if adapter is None and self._adapter is not None:
            with self._model.disable_adapter():
                yield self._model
        else:
            yield self._model

    def _load(self, path: str) -> None:
        self._model = self._path = self._adapter = None
        gc.collect()
        recipe = dict(self.job.recipe)
        if torch.cuda.is_available() and torch.cuda.device_count() > 1 and recipe.get("device") != "cpu":
            recipe["model_init_kwargs"] = {**(recipe.get("model_init_kwargs") or {}), "device_map": "auto"}
        job = make_job(recipe, str(self.job.run.path))
        model = training.load_model(job, path)
        if model.get_input_embeddings().weight.shape[0] < self.vocabulary:
            model.resize_token_embeddings(self.vocabulary, mean_resizing=False)
        if not hasattr(model, "hf_device_map"):
            model = model.to(training.device(job))
        self._model, self._path = model.eval(), path

    def _attach(self, adapter: str) -> None:
        from peft import PeftModel

        try:
            self._model = PeftModel.from_pretrained(self._model, adapter).eval()
        except (ValueError, KeyError, RuntimeError, TypeError) as error:
            raise UsageError(
                _("the adapter does not fit this base: {reason}").format(reason=_reason(error)),
                where=adapter,
                fix=_("name the model that it was trained on with --base"),
                kind="adapter_of_another_base",
            ) from error
        except ImportError as error:
            raise FtuiError(
                _("the adapter needs a package that is missing: {reason}").format(reason=_reason(error)),
                where=adapter,
                kind="missing_package",
            ) from error
        self._adapter = adapter


def causal(model: Any) -> Any:
    """The causal language model inside PEFT's wrapping; adapters stay in its layers."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return next((line for line in lines if "size mismatch" in line or "not found" in line), lines[0])[:300]
