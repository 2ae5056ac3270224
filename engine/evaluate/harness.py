"""`python -m engine.evaluate.harness`: tasks of lm-eval, base and tuned on the same ones. Loads torch.

The harness is the user's own choice and install; where it is not there the error says so.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import traceback
from pathlib import Path
from typing import Any, TextIO

from engine.errors import FtuiError, UsageError
from engine.text import _


def main() -> int:
    """Run the tasks; every outcome is an event."""
    out = sys.stdout
    sys.stdout = sys.stderr  # the harness prints a lot
    job = json.loads(sys.stdin.read())
    try:
        _run(job, out)
    except FtuiError as error:
        _tell(out, event="error", **error.to_json())
        return error.exit_code
    except Exception as error:  # noqa: BLE001 - the parent must be able to say what it was
        traceback.print_exc()
        text = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
        _tell(out, event="error", kind="harness_failed", message=f"lm-eval: {text}", exit_code=1)
        return 1
    return 0


def _run(job: dict[str, Any], out: TextIO) -> None:
    if importlib.util.find_spec("lm_eval") is None:
        raise UsageError(
            _("lm-eval is not installed in the training environment"),
            where=sys.executable,
            fix=_("install it there: {python} -m pip install lm_eval").format(python=sys.executable),
            kind="missing_package",
        )
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    from engine.evaluate import models
    from engine.train.source import load_tokenizer

    work = models.make_job(job["recipe"], job["run"])
    tokenizer = load_tokenizer(work, job["tokenizer"])
    loader = models.Models(work, job["roles"], len(tokenizer))
    manager = TaskManager(include_path=job["include"])
    unknown = [name for name in job["tasks"] if not manager.match_tasks([name])]
    if unknown:
        raise UsageError(
            _("lm-eval has no task {names}").format(names=", ".join(unknown)),
            fix=_("`lm_eval ls tasks` lists them"),
            kind="no_such_task",
        )
    for role in job["roles"]:
        _tell(out, event="phase", doing="model", role=role)
        with loader.use(role) as model:
            found = simple_evaluate(
                model=HFLM(pretrained=model, tokenizer=tokenizer, batch_size=job["batch"]),
                tasks=job["tasks"],
                limit=job["limit"],
                task_manager=manager,
                random_seed=0,
                numpy_random_seed=0,
                torch_random_seed=0,
                fewshot_random_seed=0,
            )
        _tell(out, event="harness", role=role, rows=list(_rows(found["results"])))


def _rows(results: dict[str, dict[str, Any]]) -> Any:
    for task, values in results.items():
        for name, value in values.items():
            metric, _comma, kind = name.partition(",")
            if not kind or metric.endswith("_stderr") or isinstance(value, bool) or not isinstance(value, int | float):
                continue
            error = values.get(f"{metric}_stderr,{kind}")
            known = error if isinstance(error, int | float) else None
            yield {"task": task, "metric": name, "value": float(value), "stderr": known}


def _tell(out: TextIO, **event: Any) -> None:
    out.write(json.dumps(event) + "\n")
    out.flush()


if __name__ == "__main__":
    sys.path[:] = [entry for entry in sys.path if entry not in ("", str(Path.cwd()))]
    raise SystemExit(main())
