"""The end of a run: final/ in the run folder, and its copy where the recipe wants it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from engine.errors import FtuiError
from engine.files import fsync_dir
from engine.text import _
from engine.train import exporting
from engine.train.job import Job
from engine.train.ranks import Ranks

LEFT_OUT = ("training_args.bin",)  # a pickle of this machine's paths: of no use to whoever loads the model


def write_final(job: Job, ranks: Ranks, trainer: Any, tokenizer: Any) -> None:
    """Save adapter or model, tokenizer and chat template as final/, whole or not at all.

    Raises:
        FtuiError: it could not be written.
    """
    staging = job.run.path / ".staging-final"
    if ranks.first:
        shutil.rmtree(staging, ignore_errors=True)
    exporting.export(trainer, str(staging))  # on all ranks: sharded weights are gathered
    ranks.by_first(lambda: _commit(job, staging, tokenizer))


def _commit(job: Job, staging: Path, tokenizer: Any) -> None:
    try:
        tokenizer.save_pretrained(str(staging))
        for name in LEFT_OUT:
            (staging / name).unlink(missing_ok=True)
        _replace(staging, job.run.final)
    except OSError as error:
        raise FtuiError(
            _("the result cannot be written: {reason}").format(reason=error.strerror or error),
            where=str(job.run.final),
            fix=_("make room and `ftui resume` the run: training itself is complete"),
            kind="disk",
        ) from error
    if output := job.get("output_dir"):
        target = Path(output)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            copy = target.with_name(f".{target.name}.staging")
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(job.run.final, copy)
            if target.is_dir() and not any(target.iterdir()):
                target.rmdir()
            copy.rename(target)
        except OSError as error:
            raise FtuiError(
                _("the result is in the run folder but cannot be copied to output_dir: {reason}").format(
                    reason=error.strerror or error
                ),
                where=str(target),
                fix=_("copy {path} yourself").format(path=job.run.final),
                kind="disk",
            ) from error


def _replace(staging: Path, final: Path) -> None:
    """Make the content durable and give it its name; an older one goes only then."""
    for path in staging.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
    fsync_dir(staging)
    old = final.with_name(".replaced-final")
    if final.exists():
        shutil.rmtree(old, ignore_errors=True)
        final.rename(old)
    staging.rename(final)
    fsync_dir(final.parent)
    shutil.rmtree(old, ignore_errors=True)
