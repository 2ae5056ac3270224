"""The life of a rank, from the recipe to the last line of the journal. Loads torch."""

from __future__ import annotations

import os
from typing import Any

import torch
import transformers

from engine.checkpoint import ledger, manifest, retention
from engine.errors import GateError
from engine.text import _
from engine.train import (
    adapters,
    arguments,
    checks,
    data,
    environment,
    exactness,
    finish,
    model,
    samples,
    sharding,
    source,
    tasks,
)
from engine.train import job as jobs
from engine.train.callbacks import ControlCallback, JournalCallback
from engine.train.events import Events
from engine.train.heartbeat import Heartbeat
from engine.train.rank import Signals
from engine.train.ranks import Ranks
from engine.train.saving import Saver
from engine.train.watch import LossCallback


class Program:
    """Trains one run in this rank. `step` is where it is, for whoever reports an error."""

    def __init__(self, job: jobs.Job, events: Events, signals: Signals) -> None:
        self.job = job
        self.rank = job.rank
        self.events = events
        self.signals = signals
        self.step = job.rank.begins_at
        self._journal: JournalCallback | None = None

    def reached(self) -> int:
        """The last step that was trained."""
        return self._journal.step if self._journal else self.step

    def run(self) -> None:
        """Train to the end or to a stop, and say so in the journal.

        Raises:
            FtuiError: something is wrong with the recipe, the data, the model or what came of them.
        """
        rank, job = self.rank, self.job
        resumed = self._resumed()
        transformers.utils.logging.disable_progress_bar()
        os.environ.update(sharding.environment(job.recipe))
        args = arguments.build(job)  # also makes the process group
        ranks = Ranks(rank)
        ranks.connect()
        if doing := source.to_come(job):
            self.events.append("phase", phase="load", doing=doing)
        path = source.locate(job, ranks)
        tokenizer = source.load_tokenizer(job, path)
        document = data.document(job)
        if rank.first:
            environment.record(job, document, path)
            rank.run.checkpoints.mkdir(exist_ok=True)
            retention.clean(rank.run.checkpoints)
        self.events.append("phase", phase="load", doing="model")
        train_rows, eval_rows = data.load(job)
        trainer = self._build(job, args, path, tokenizer, train_rows, eval_rows)
        checks.verify(job, trainer)
        samples.attach(job, trainer, tokenizer)  # before the journal, which then leaves their time out of its rates
        saver = self._connect(job, ranks, trainer, document, resumed)
        control = ControlCallback(ranks, self.events, self.signals, rank, can_evaluate=eval_rows is not None)
        trainer.add_callback(control)
        ranks.gather(None)  # all are here before the first step
        self.signals.training_begins()
        trainer.train(resume_from_checkpoint=str(rank.resume_from) if rank.resume_from else None)
        if control.stopped:
            self._end("stopped", trainer, saver)
        else:
            finish.write_final(job, ranks, trainer, tokenizer)
            self._end("done", trainer, saver)
        ranks.gather(None)  # nobody leaves while another still needs the group
        ranks.close()

    def _end(self, outcome: str, trainer: Any, saver: Saver) -> None:
        self.events.append("end", step=trainer.state.global_step, outcome=outcome, saved_step=saver.saved_step)
        self.events.sync()

    def _resumed(self) -> manifest.Manifest | None:
        """The manifest of the checkpoint to resume from; never one that is not whole."""
        path = self.rank.resume_from
        if path is None:
            return None
        entry = ledger.inspect(path)
        if entry is None or not entry.resumable:
            raise GateError(
                _("this checkpoint cannot be resumed from: {problem}").format(
                    problem=(entry.problem if entry else None) or _("it is no checkpoint")
                ),
                where=str(path),
                fix=_("resume from another step: `ftui resume RUN --step N`"),
                kind="bad_checkpoint",
            )
        self.step = entry.step
        saved = manifest.read(path)
        if saved is not None:
            exactness.require_form(path, saved, sharding.kind(self.job.recipe), self.rank.world_size)
        return saved

    def _build(self, job: jobs.Job, args: Any, path: str, tokenizer: Any, train_rows: Any, eval_rows: Any) -> Any:
        if job.task != "dpo":  # the rows have their loss mask in `labels`: TRL is to leave them alone
            args.dataset_kwargs = {**(args.dataset_kwargs or {}), "skip_prepare_dataset": True}
            args.assistant_only_loss = False
            args.completion_only_loss = False
        transformers.set_seed(args.seed)
        base, adapter = model.load_model(job, path), adapters.config(job)
        if adapter is not None:
            adapters.check(base, adapter)
        trainer = tasks.of(job).trainer(
            model=base,
            args=args,
            train_dataset=train_rows,
            eval_dataset=eval_rows,
            processing_class=tokenizer,
            peft_config=adapter,
        )
        if adapter is not None:
            adapters.keep_precision(job, trainer.model)
        trainer.own_optimizer = job.get("optim")
        trainer.remove_callback(transformers.PrinterCallback)
        return trainer

    def _connect(self, job: jobs.Job, ranks: Ranks, trainer: Any, document: dict[str, Any], resumed: Any) -> Saver:
        """Attach the saver and the journal to the trainer."""
        rank, args = self.rank, trainer.args
        saver = Saver(
            rank.run.checkpoints,
            ranks,
            self.events,
            policy=retention.Policy.of(job.recipe),
            background=job.recipe.get("async_save"),
            meta={
                "world_size": rank.world_size,
                "attempt": rank.attempt,
                "versions": environment.versions(),
                "recipe_sha256": job.recipe_sha256,
                "data_sha256": document.get("data_sha256"),
            },
        )
        trainer.saver = saver
        if resumed is not None:
            saver.saved_step = resumed.step
            saver.metrics.update(resumed.metrics)
        different = []
        if resumed is not None:
            different = exactness.reasons(
                resumed,
                world_size=rank.world_size,
                versions=environment.versions(),
                recipe_sha256=job.recipe_sha256,
                data_sha256=document.get("data_sha256"),
            )
        trained, total = checks.counts(trainer.model)
        per_device = args.per_device_train_batch_size
        self._journal = JournalCallback(
            rank,
            ranks,
            self.events,
            saver,
            start={
                "world_size": rank.world_size,
                "per_device_train_batch_size": per_device,
                "gradient_accumulation_steps": args.gradient_accumulation_steps,
                "global_batch_size": per_device * args.gradient_accumulation_steps * rank.world_size,
                "num_train_epochs": args.num_train_epochs,
                "trainable_parameters": trained,
                "total_parameters": total,
                "device": _device_name(args.device),
                "dtype": str(next(trainer.model.parameters()).dtype).removeprefix("torch."),
                "sharding": job.get("sharding", "none"),
                "attn_implementation": checks.attention(trainer.model),
                "loss_path": checks.loss_path(trainer.model),
                "assistant_only_loss": document["train"].get("assistant_only_loss"),
                "resumed_from": str(rank.resume_from) if rank.resume_from else None,
                "exact_resume": not different if resumed is not None else None,
                "not_exact": different,
                "tokens_seen": resumed.metrics.get("tokens_seen", 0) if resumed is not None else 0,
            },
        )
        trainer.add_callback(self._journal)
        if rank.first:
            trainer.add_callback(Heartbeat(rank.run.logs / "heartbeat"))
        trainer.add_callback(checks.AtStart(job, trainer))
        trainer.add_callback(LossCallback(ranks, saver, trainer))
        return saver


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
