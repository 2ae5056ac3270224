"""`python -m engine.smoke FOLDER`: random weights for the configuration in FOLDER; prints their number as JSON."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def main() -> int:
    """Make model.safetensors beside config.json."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = Path(sys.argv[1])
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(folder)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)  # type: ignore[no-untyped-call, unused-ignore]
    model.save_pretrained(folder)
    print(json.dumps({"parameters": sum(p.numel() for p in model.parameters())}))  # noqa: T201 the answer
    return 0


if __name__ == "__main__":
    sys.exit(main())
