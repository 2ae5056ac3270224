"""The process that does the arithmetic: started with the training Python, heard line by line, never left behind."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from typing import IO, Any

from engine.errors import DoesNotFit, FtuiError, GateError
from engine.text import _


def run(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Start it and yield its events.

    Raises:
        DoesNotFit: the disk became full.
        FtuiError: it could not be started, or failed.
        GateError: it ended while it verified.
    """
    from engine import settings
    from engine.process import die_with_parent

    environment = {
        **os.environ, "PYTHONSAFEPATH": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false", "TRANSFORMERS_VERBOSITY": "error",
    }  # fmt: skip
    python = settings.training_python()
    parent = os.getpid()
    written = False
    with tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                [python, "-m", "engine.merge"],
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
                    raise _disk(event)
                written = written or event["event"] == "streamed"
                yield event
            code = process.wait()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        if code:
            raise _died(code, written, _last_line(errors))


def _disk(event: dict[str, Any]) -> FtuiError:
    if event["kind"] == "disk_full":
        return DoesNotFit(
            _("the disk became full while the merged model was written"),
            fix=_("free space there, or choose another --out; nothing was left behind"),
            kind="disk_full",
        )
    if event["kind"] == "cannot_quantize":
        return FtuiError(
            _("the base cannot be quantized as it was for the training: {reason}").format(reason=event["text"]),
            fix=_("merge into the 16-bit base (without --quantized-base)"),
            kind="cannot_quantize",
        )
    return FtuiError(
        _("the merge failed: {reason}").format(reason=event["text"]),
        fix=_("check the disk and the files; nothing was left behind"),
        kind="io",
    )


def _died(code: int, written: bool, reason: str) -> FtuiError:
    if code < 0:
        reason = _("it was ended by signal {number} (out of memory?)").format(number=-code)
    if written:
        return GateError(
            _("the merged model could not be verified, so it was not kept: {reason}").format(reason=reason),
            fix=_("free memory, or leave the comparison of logits out with --skip-logits"),
            kind="not_verified",
        )
    return FtuiError(
        _("the merge failed: {reason}").format(reason=reason),
        fix=_("`ftui doctor` says whether the training Python is complete; nothing was left behind"),
        kind="merge_failed",
    )


def _last_line(errors: IO[bytes]) -> str:
    errors.seek(0, os.SEEK_END)
    errors.seek(max(0, errors.tell() - 4096))
    lines = errors.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:200] if lines else _("it ended without a word")
