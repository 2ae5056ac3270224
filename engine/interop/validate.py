"""Asks the other tool itself about a configuration: a program of its own, run where that tool may be installed.

    python -m engine.interop.validate axolotl FILE

prints `{"installed": bool, "error": str|null}`. It is the one module here that imports what trains.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def _axolotl(path: Path) -> None:
    import yaml
    from axolotl.utils.schemas.config import AxolotlInputConfig  # type: ignore[import-not-found]

    AxolotlInputConfig(**yaml.safe_load(path.read_text(encoding="utf-8")))


def _llamafactory(path: Path) -> None:
    import yaml
    from llamafactory.hparams import get_train_args  # type: ignore[import-not-found]

    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    get_train_args({**config, "report_to": "none"})


CHECKS = {"axolotl": _axolotl, "llamafactory": _llamafactory}


def main() -> int:
    """Check one file."""
    tool, path = sys.argv[1], Path(sys.argv[2])
    answer: dict[str, object] = {"installed": True, "error": None}
    try:
        CHECKS[tool](path)
    except ImportError as error:
        answer = {"installed": False, "error": str(error)[:500]}
    except Exception as error:  # noqa: BLE001 whatever the tool raises is its answer
        answer["error"] = f"{type(error).__name__}: {str(error).strip()}"[:2000]
    print(json.dumps(answer))  # noqa: T201 the answer
    return 0


if __name__ == "__main__":
    sys.exit(main())
