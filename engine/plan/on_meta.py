"""An architecture that is not known here: transformers builds it on the meta device, in a process of its own."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from typing import Any

from engine.errors import FtuiError, UsageError
from engine.plan import families
from engine.plan.shapes import Shape
from engine.text import _

TIMEOUT = 180


def count(config: dict[str, Any], name: str) -> Shape:
    """The shape of an unknown architecture: exact parameters, and a layer like Llama's for its activations.

    Raises:
        UsageError: transformers does not know it either, or its config lacks what every decoder has.
    """
    from engine import settings

    family = str(config.get("model_type"))[:40]
    environment = {**os.environ, "PYTHONSAFEPATH": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    try:
        done = subprocess.run(
            [settings.training_python(), "-m", "engine.plan.meta_child"],
            input=json.dumps(config).encode(),
            capture_output=True,
            timeout=TIMEOUT,
            env=environment,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FtuiError(
            _("the model cannot be counted: {reason}").format(reason=str(error)[:200]), where="model"
        ) from error
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or [""]
        raise UsageError(
            _("transformers cannot build the architecture '{family}': {reason}").format(
                family=family, reason=lines[-1][:200]
            ),
            where="config.model_type",
            kind="unknown_architecture",
        )
    parameters = int(json.loads(done.stdout.splitlines()[-1])["parameters"])
    fields = {k: v for k, v in config.items() if isinstance(v, int | bool)}
    like = families.build({**fields, "model_type": "llama"}, name, ())
    note = _("'{family}' is not in the catalogue: counted through transformers, its layers taken as Llama's").format(
        family=family
    )
    return dataclasses.replace(like, family=family, counted=parameters, notes=(note,))
