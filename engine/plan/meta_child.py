"""The child of `on_meta`: reads a config on stdin, prints how many parameters transformers makes of it. Loads torch."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM


def main() -> None:
    """Build on the meta device and count; tied parameters count once."""
    fields = json.load(sys.stdin)
    family = fields.pop("model_type")
    config = AutoConfig.for_model(family, **fields)
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config, trust_remote_code=False)  # type: ignore[no-untyped-call]
    print(json.dumps({"parameters": sum(p.numel() for p in model.parameters())}))  # noqa: T201


if __name__ == "__main__":
    main()
