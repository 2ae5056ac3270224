"""Taking a run up again: from which checkpoint, on what, what is different from before, and whether it is exact."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine import journal
from engine.errors import GateError, UsageError
from engine.files import Lock, write_json
from engine.process import ProcessId
from engine.run import choice, comparison, launch, planned
from engine.run.choice import Choice
from engine.run.gpus import Placement, place_again
from engine.run.launch import Started
from engine.run.status import LIVE, held_s, read_plan, start_again, state_of
from engine.text import _
from engine.train.sharding import SHARDED
from engine.workspace import RunFolder, Workspace, locate

LISTED = 20  # checkpoints named in an error
# What may be changed on the way: neither the rows nor the weights nor the optimizer's state depend on these.
FREE = frozenset(
    {
        "per_device_train_batch_size", "gradient_accumulation_steps", "gradient_checkpointing", "attn_implementation",
        "use_liger_kernel", "torch_empty_cache_steps", "dataloader_num_workers", "per_device_eval_batch_size",
        "eval_accumulation_steps", "save_total_limit", "on_nan", "on_loss_spike", "on_eval_rise", "loss_spike_factor",
        "eval_rise_patience", "max_rollbacks", "hang_after_s", "hang_factor",
    }
)  # fmt: skip


def resume(
    run: RunFolder,
    *,
    step: int | None = None,
    gpus: int | None = None,
    changes: Sequence[str] = (),
    force: bool = False,
) -> Started:
    """Take a run up again from the newest checkpoint whose content is whole.

    Args:
        run: a run that nobody supervises.
        step: the checkpoint to go on from instead.
        gpus: how many GPUs; by default as many as before. The global batch stays what it was.
        changes: `key=value` texts for keys that may change on the way (`FREE`).
        force: go on though loading the checkpoint does not fit by the plan.

    Raises:
        PlanRefused: loading the checkpoint takes more memory than there is.
        UsageError: the run is alive, done, its global batch cannot be divided among that many GPUs, or a change is
            not one that can be made now.
        GateError: there is nothing to resume from.
        FtuiError: no GPU is free, leftover ranks cannot be ended, or the supervisor did not come up.
    """
    from engine import settings

    python, restarts = settings.training_python(), settings.load().max_restarts
    launch.can_train(python)
    lock = launch.take_lock(run)
    try:
        state = run.read_state()
        if state_of(state) in LIVE:  # the command that starts it has not handed over yet
            raise launch.busy(run)
        if state.get("state") == "done":
            raise UsageError(
                _("{run} is done: there is nothing left to train").format(run=run.name),
                where=str(run.path),
                fix=_("start a new run with more steps or epochs"),
                kind="already_done",
            )
        values = read_changes(changes)
        launch.reap(run)
        chosen, skipped = choice.choose(run.checkpoints, step=step)
        if chosen is None:
            raise nothing_to_resume(run, step, skipped)
        need_base(run)
        return _go_on(run, lock, state, chosen, skipped, gpus, values, python, restarts, force)
    finally:
        lock.release()


def need_base(run: RunFolder) -> None:
    """Stop a resume without the folder of its base model, which backups do not hold, before it takes GPUs.

    Raises:
        UsageError: the folder is not there.
    """
    from engine.recipe import paths

    name = (run.read_resolved().get("recipe") or {}).get("model_name_or_path")
    if isinstance(name, str) and paths.is_path("model_name_or_path", name) and not Path(name).is_dir():
        raise UsageError(
            _("the base model of {run} is not here").format(run=run.name),
            where=name,
            fix=_("bring the folder to this path; a symbolic link will do"),
            kind="missing_model",
        )


def _go_on(
    run: RunFolder,
    lock: Lock,
    state: dict[str, Any],
    chosen: Choice,
    skipped: list[str],
    gpus: int | None,
    values: dict[str, Any],
    python: str,
    restarts: int,
    force: bool,
) -> Started:
    from engine.run.progress import from_checkpoint
    from engine.run.statefile import fresh

    before: list[str] = state.get("gpus") or []
    workspace = workspace_of(run)
    placement = place_again(workspace, run.read_resolved().get("recipe") or {}, state, gpus)
    try:
        was = comparison.setup_before(run, state, chosen.entry)
        if len(placement.gpus) != len(before) or placement.ranks != (state.get("world_size") or 1) or values:
            document, given = resolve_again(run, placement, values)
            plan = planned.make(workspace.root, document["recipe"], placement, given=given, auto=False)
            planned.refuse(plan, where=str(run.plan), force=force, resumes=True)
            write_json(run.resolved, document)
            if plan.document is None:
                run.plan.unlink(missing_ok=True)  # that of the other setup says nothing any more
            else:
                write_json(run.plan, plan.document)
        else:
            planned.refuse_resume(read_plan(run), run, force=force)
        report = comparison.report(state, chosen, was, comparison.setup_after(run, placement), skipped, python)
        entry = chosen.entry
        old = {key: state[key] for key in ("created", "max_steps", "restarts") if key in state}
        now = fresh(
            run.name,
            **old,
            **from_checkpoint(run, entry),
            earlier_s=held_s(state),
            attempt=_last_attempt(run, state) + 1,
            supervisor=ProcessId.current().to_json(),
            device=placement.device,
            world_size=placement.ranks,
            gpus=list(placement.gpus),
        )
        write_json(run.state, now)
        events = journal.JournalWriter(run.events)
        events.append(
            "resumed",
            attempt=now["attempt"],
            resumed_from=str(entry.path),
            skipped=skipped,
            exact=report["exact"],
            differs=report["differs"],
            changes=values,
        )
        events.close()
        process = launch.supervise(run, lock, placement, python=python, max_restarts=restarts)
        return Started(run, process.pid, launch.keeper_findings(workspace), resumed=report)
    finally:
        placement.release()


def workspace_of(run: RunFolder) -> Workspace:
    """The workspace that holds a run folder; the user's for a folder that lies elsewhere."""
    return Workspace(run.path.parent.parent) if run.path.parent.name == "runs" else locate()


def _last_attempt(run: RunFolder, state: dict[str, Any]) -> int:
    newest = (journal.last(run.journal) or {}).get("attempt")
    known = [number for number in (state.get("attempt"), newest) if isinstance(number, int)]
    return max(known, default=1)


def read_changes(changes: Sequence[str]) -> dict[str, Any]:
    """The values of `key=value` texts.

    Raises:
        UsageError: a text is not one, its value is wrong, or its key cannot change now.
    """
    if not changes:
        return {}
    from engine.recipe import keys
    from engine.recipe.values import Unusable, convert
    from engine.yamldoc import Scalar

    known, values = keys.table(), {}
    for text in changes:
        name, equals, value = text.partition("=")
        name = keys.canonical(name.strip())
        if not equals or name not in known:
            fix = _("write key=value; `ftui recipe check` knows the keys")
            raise UsageError(_("'{text}' is not key=value").format(text=text[:80]), fix=fix, kind="bad_override")
        if name not in FREE:
            raise UsageError(
                _("{key} cannot change on a resume: the checkpoint was made with it").format(key=name),
                where=name,
                fix=_("start a new run with it; on a resume can change: {keys}").format(keys=", ".join(sorted(FREE))),
                kind="fixed_key",
            )
        try:
            values[name] = convert(known[name], Scalar(0, text=value.strip()))
        except Unusable as problem:
            raise UsageError(problem.detail, where=name, fix=problem.fix, kind=problem.kind) from None
    return values


def resolve_again(
    run: RunFolder, placement: Placement, values: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The same recipe on other GPUs or with other free keys; the global batch stays what it was.

    Returns:
        What resolved.json is to be, and what the recipe itself says.

    Raises:
        UsageError: the global batch cannot be made that way.
    """
    from engine.recipe import defaults

    document = run.read_resolved()
    recipe, origin = document["recipe"], document["origin"]
    given = {key: recipe[key] for key, where in origin.items() if where in ("recipe", "override") and key in recipe}
    given.pop("gradient_accumulation_steps", None)
    given["global_batch_size"] = total = recipe["global_batch_size"]
    if placement.ranks > 1:  # what the plan chose then: it is how the checkpoint is stored, too
        kept = ("sharding", "cpu_offload") if recipe.get("sharding") in SHARDED else ()
        given.update({key: recipe[key] for key in kept if origin.get(key) == "derived"})
    if recipe.get("device") == "cpu" and "num_gpus" in given:
        given["num_gpus"] = placement.ranks
    given.update(values)
    accumulation = given.pop("gradient_accumulation_steps", None)  # follows from the rest; said twice it may differ
    try:
        resolved = defaults.fill(given, num_gpus=len(placement.gpus), bf16_available=placement.bf16)
    except UsageError as error:
        each = given.get("per_device_train_batch_size") or recipe["per_device_train_batch_size"]
        fitting = ", ".join(str(n) for n in range(1, total // each + 1) if total % (each * n) == 0)
        raise UsageError(
            _("a global batch of {total} in pieces of {each} cannot be divided among {n} GPUs").format(
                total=total, each=each, n=len(placement.gpus)
            ),
            where="global_batch_size",
            fix=_("use --gpus with one of: {numbers}").format(numbers=fitting),
            kind="batch_not_divisible",
        ) from error
    if accumulation is not None and accumulation != resolved["gradient_accumulation_steps"]:
        raise UsageError(
            _("gradient_accumulation_steps {asked} would change the global batch of {total}").format(
                asked=accumulation, total=total
            ),
            where="gradient_accumulation_steps",
            fix=_("leave it out: it follows from per_device_train_batch_size"),
            kind="batch_not_divisible",
        )
    for key in values:
        origin[key] = "override"
    return {**document, "recipe": resolved, "origin": origin}, given


def nothing_to_resume(run: RunFolder, step: int | None, skipped: list[str]) -> GateError:
    """The error of a run without a checkpoint to go on from, with what to do instead."""
    from engine.checkpoint import ledger

    what = _("{run} has no complete checkpoint to resume from").format(run=run.name)
    if step is not None:
        what = _("{run} has no complete checkpoint of step {step}").format(run=run.name, step=step)
    if skipped:
        what += ": " + "; ".join(skipped[:3])
    fix = start_again(run)
    if there := [str(entry.step) for entry in ledger.list(run.checkpoints) if entry.resumable and entry.step != step]:
        fix = _("there are: {steps}").format(steps=", ".join(there[-LISTED:]))
    return GateError(what, where=str(run.checkpoints), fix=fix, kind="nothing_to_resume")
