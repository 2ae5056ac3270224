"""`python -m torch.distributed.run … -m engine.train RUN_FOLDER`: one rank of a run."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import traceback
from pathlib import Path
from typing import NoReturn

from engine.train.rank import Rank, Signals, die_with_parent, open_log


def main(argv: list[str]) -> NoReturn:
    """Run this rank; exit 0 when it ended in order, done or stopped; 1 on an error that rank-N.error.json explains."""
    die_with_parent()
    from engine.workspace import RunFolder

    rank = Rank.from_environment(RunFolder(Path(argv[0]).absolute()))
    open_log(rank.log)
    rank.error_file.unlink(missing_ok=True)

    from engine.train.events import Events

    events = Events(rank.run.journal if rank.first else None, rank.attempt)
    signals = Signals()
    program = None

    def interrupted() -> None:
        with contextlib.suppress(Exception):
            events.append("end", step=program.step if program else rank.begins_at, outcome="stopped", saved_step=None)

    signals.install(interrupted)
    from engine.train import failure, job, rows, sharding

    try:
        if plugin := os.environ.get("FTUI_ENGINE_PLUGIN"):
            importlib.import_module(plugin)
        # What can be refused without torch is refused before its seconds of loading.
        work = job.load(rank)
        if "deepspeed" not in sharding.trainer_options(work.recipe, rank.world_size):  # it wants a group even of one
            rank.become_plain_process()
        if rank.resume_from is None:
            rows.locate(work)
        events.append("phase", phase="load", doing="libraries")
        from engine.train.program import Program

        program = Program(work, events, signals)
        program.run()
        # As below: DeepSpeed leaves work in flight that the destructors wait for, or abort at.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the error file must tell
        traceback.print_exc()
        step = program.reached() if program else rank.begins_at
        failure.record(rank, failure.explain(error, step), step, error)
        events.append("end", step=step, outcome="failed", saved_step=None)
        events.sync()
        # Not a plain return: what was left of a broken process group can hang in its destructors.
        sys.stderr.flush()
        os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
