"""The process that runs the models: started with the training Python, heard line by line, never left behind."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from typing import IO, Any

from engine.errors import DoesNotFit, FtuiError
from engine.text import _


def run(job: dict[str, Any], module: str = "engine.evaluate") -> Iterator[dict[str, Any]]:
    """Start it and yield its events. Whoever stops reading ends it; what it has computed is kept.

    Raises:
        FtuiError: it could not be started, or says what is wrong.
    """
    from engine import settings
    from engine.process import die_with_parent

    environment = {
        **os.environ, "PYTHONSAFEPATH": "1", "TOKENIZERS_PARALLELISM": "false", "TRANSFORMERS_VERBOSITY": "error",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }  # fmt: skip
    python = settings.training_python()
    parent = os.getpid()
    with tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                [python, "-m", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                preexec_fn=lambda: die_with_parent(parent=parent),  # noqa: PLW1509 - started from the main thread
            )
        except OSError as error:
            raise FtuiError(
                _("the training Python cannot be started: {reason}").format(reason=error.strerror or error),
                where=python,
                fix=_("`ftui doctor` says what it lacks"),
            ) from error
        try:
            assert process.stdin is not None and process.stdout is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps(job).encode())
                process.stdin.close()
            for line in process.stdout:
                event = json.loads(line)
                if event["event"] == "error":
                    raise _told(event)
                yield event
            code = process.wait()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
        if code:
            raise _died(code, _last_line(errors))


def _told(event: dict[str, Any]) -> FtuiError:
    if event.get("kind") == "out_of_memory":
        return DoesNotFit(
            _("the evaluation ran out of memory: {reason}").format(reason=event["message"]),
            fix=_("stop what else uses the device, or evaluate on another one; what is done is kept"),
            kind="out_of_memory",
        )
    return FtuiError(
        event["message"],
        where=event.get("where"),
        fix=event.get("fix") or _("what is done is kept: the same command goes on from there"),
        kind=event.get("kind") or "failed",
        exit_code=event.get("exit_code") or 1,
    )


def _died(code: int, reason: str) -> FtuiError:
    if code < 0:
        reason = _("it was ended by signal {number} (out of memory?)").format(number=-code)
    return FtuiError(
        _("the evaluation failed: {reason}").format(reason=reason),
        fix=_("what is done is kept: the same command goes on from there"),
        kind="evaluation_failed",
    )


def _last_line(errors: IO[bytes]) -> str:
    errors.seek(0, os.SEEK_END)
    errors.seek(max(0, errors.tell() - 4096))
    lines = errors.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:200] if lines else _("it ended without a word")
