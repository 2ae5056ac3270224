"""`python -m engine.evaluate.function`: scores answers by the user's own function, in a process of its own.

The job comes as JSON on stdin; each score goes out as a line, so that an exception loses only what came after it.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import traceback
from pathlib import Path
from typing import Any, TextIO


def main() -> int:
    """Load the function, call it for each row."""
    out = sys.stdout
    sys.stdout = sys.stderr  # the user's function may print
    job = json.loads(sys.stdin.read())
    try:
        function = _load(Path(job["file"]), job["name"])
    except BaseException as error:  # noqa: BLE001 - whatever the user's file does on import
        _tell(
            out, event="error", kind="bad_metric", message=_line(error), where=_where(error, job["file"]), exit_code=2
        )
        return 2
    for row in job["rows"]:
        try:
            value = function(row["answer"], row["row"])
            score = float(value)
            if not 0 <= score <= 1:
                raise ValueError(f"the score must be between 0 and 1, and it is {value!r}"[:200])
        except Exception as error:  # noqa: BLE001
            traceback.print_exc()
            message, where = _line(error), _where(error, job["file"])
            _tell(out, event="raised", id=row["id"], role=row["role"], message=message, where=where)
            continue
        _tell(out, event="score", id=row["id"], role=row["role"], score=score)
    return 0


def _load(path: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location("ftui_user_metric", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    spec.loader.exec_module(module)
    found = getattr(module, name, None)
    if not callable(found):
        raise AttributeError(f"{path.name} has no function {name}")
    return found


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]}"


def _where(error: BaseException, file: str) -> str:
    """The line of the user's file that it came from."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename == file:
            return f"{file}:{frame.lineno}"
    return file


def _tell(out: TextIO, **event: Any) -> None:
    out.write(json.dumps(event) + "\n")
    out.flush()


if __name__ == "__main__":
    raise SystemExit(main())
