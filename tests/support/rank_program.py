#!/usr/bin/env python3
"""A stand-in for launcher and ranks, for the supervisor's tests alone: no torch, steps of some milliseconds.

The tests give this file as the "python" of the training environment, so it gets torchrun's arguments and ignores
them. It meets the supervisor through the same files and signals as the real program (docs/files.md). What it does is
told by FTUI_TEST_RANK, a JSON object:

    steps, step_time, save_every, load_time
    crash: {attempt: step}    ends badly there; `how` says how: "exit", "kill", or the kind of a rank's error report
    hang: {attempt: step}   waits there for ever, as a rank in a collective whose other side is gone
    losses: {step: loss}    other losses than 3 / step; null is no number
    evals: {step: loss}     evaluations
    child: true               a second process in a session of its own that ignores TERM (a rank that hangs)
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from engine.checkpoint import manifest
from engine.files import read_json, write_json
from engine.journal import JournalWriter
from engine.process import die_with_parent
from engine.workspace import RunFolder
from tests.support.checkpoints import write_checkpoint

STUBBORN = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(120)"


class Ranks:
    def __init__(self) -> None:
        self.plan = json.loads(os.environ["FTUI_TEST_RANK"])
        self.run = RunFolder(Path(os.environ["FTUI_RUN"]))
        self.attempt = int(os.environ["FTUI_ATTEMPT"])
        self.journal = JournalWriter(self.run.journal, attempt=self.attempt)
        self.told = False
        self.acted = 0
        self.saved = None

    def note(self, event: str, **fields) -> None:
        """Append to the journal; a full disk does not end the training, as with the real ranks."""
        with contextlib.suppress(OSError):
            self.journal.append(event, **fields)

    def save(self, step: int) -> None:
        self.journal.append("save_begin", step=step)
        begin = time.monotonic()
        staging = self.run.checkpoints / f".staging-{step}"
        shutil.rmtree(staging, ignore_errors=True)  # what a kill left
        self.run.checkpoints.stat()  # a run whose folder went away makes no new one
        write_checkpoint(staging, step)
        final = self.run.checkpoints / f"checkpoint-{step}"
        manifest.seal(staging, final, {"step": step, "attempt": self.attempt, "metrics": {"loss": 3.0 / step}})
        self.saved = step
        self.journal.append("save", step=step, path=str(final), seconds=time.monotonic() - begin, bytes=4)

    def crash(self, step: int) -> None:
        how = self.plan.get("how", "exit")
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "exit":
            print("Traceback (most recent call last):\n  File x\nRuntimeError: the stand-in fell over", flush=True)
            sys.exit(1)
        report = {"format": 1, "attempt": self.attempt, "time": time.time(), "kind": how, "message": f"{how} at {step}"}
        write_json(self.run.logs / "rank-0.error.json", {**report, "fix": "none", "exit_code": 1})
        sys.exit(1)

    def wait_for_ever(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            time.sleep(60)

    def train(self) -> None:
        resume = os.environ["FTUI_RESUME_FROM"]
        first = int(resume.rsplit("-", 1)[1]) if resume else 0
        steps = self.plan["steps"]
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "told", True))
        self.note("start", step=first, max_steps=steps, world_size=1, device="cpu", resumed_from=resume or None)
        crash = self.plan.get("crash", {}).get(str(self.attempt))
        for step in range(first + 1, steps + 1):
            time.sleep(self.plan.get("step_time", 0.02))
            if step == crash:
                self.crash(step)
            if step == self.plan.get("hang", {}).get(str(self.attempt)):
                self.wait_for_ever()
            loss = self.plan.get("losses", {}).get(str(step), 3.0 / step)
            self.note("log", step=step, loss=loss, epoch=step / steps, tokens_per_s=100.0, step_time_s=0.02)
            if (value := self.plan.get("evals", {}).get(str(step))) is not None:
                self.note("eval", step=step, eval_loss=value)
            request = read_json(self.run.request) or {}
            do = request["do"] if request.get("id", 0) > self.acted else None
            if do:
                self.acted = request["id"]
                self.note("request", id=self.acted, do=do)
            if do == "evaluate":
                self.note("eval", step=step, eval_loss=3.5 / step)
            stop = do == "stop" or self.told
            every = self.plan.get("save_every")
            if (do == "save" or stop or step == steps or (every and step % every == 0)) and self.saved != step:
                self.save(step)
            if stop and step < steps:
                self.note("end", step=step, outcome="stopped", saved_step=self.saved)
                return
        self.note("end", step=steps, outcome="done", saved_step=self.saved)


if __name__ == "__main__":
    die_with_parent(signal.SIGTERM)
    ranks = Ranks()
    log = open(ranks.run.logs / "rank-0.log", "a")  # noqa: SIM115 - as long as the process
    faulthandler.register(signal.SIGUSR1, file=log, all_threads=True)
    if ranks.plan.get("child"):
        subprocess.Popen([sys.executable, "-S", "-c", STUBBORN], start_new_session=True)
    time.sleep(ranks.plan.get("load_time", 0.0))
    ranks.train()
