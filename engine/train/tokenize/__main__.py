"""`python -m engine.train.tokenize RUN -- COMMAND …`: make the run's data, then become the command that trains.

One process before the ranks: none of them waits for another one's work on the data, however long that takes, so no
collective can run into its timeout. It speaks for rank 0 until then (journal, log, error file).
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from pathlib import Path

from engine.train.rank import Rank, Signals, open_log


def main(argv: list[str]) -> int:
    """Make the data and run the command in this process's place; 1 on an error that rank-0.error.json explains."""
    from engine.train import failure, job, rows
    from engine.train.events import Events
    from engine.workspace import RunFolder

    command = argv[argv.index("--") + 1 :] if "--" in argv else []
    rank = Rank.from_environment(RunFolder(Path(argv[0]).absolute()))
    output = os.dup(1), os.dup(2)  # the launcher's: what comes after us writes there
    open_log(rank.log)
    rank.error_file.unlink(missing_ok=True)
    events = Events(rank.run.journal, rank.attempt)

    def interrupted() -> None:
        with contextlib.suppress(Exception):
            events.append("end", step=0, outcome="stopped", saved_step=None)

    signals = Signals()
    signals.install(interrupted)
    try:
        work = job.load(rank)
        if rank.resume_from is None:
            rows.locate(work)
        from engine.train.tokenize.prepare import made

        if made(work) is None:
            from engine.train.tokenize.prepare import prepare

            document = prepare(work, events)
            if document.get("left_out"):
                events.append("left_out", **document["left_out"])
    except BaseException as error:  # noqa: BLE001 - whatever it is, the error file must tell
        traceback.print_exc()
        failure.record(rank, failure.explain(error, 0), 0)
        events.append("end", step=0, outcome="failed", saved_step=None)
        events.sync()
        return 1
    events.sync()
    sys.stdout.flush()
    sys.stderr.flush()
    for number, copy in zip((1, 2), output, strict=True):
        os.dup2(copy, number)
        os.close(copy)
    if command:
        os.execvp(command[0], command)  # noqa: S606 - the death signal that the launcher set stays in force
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
