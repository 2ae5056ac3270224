"""Contradictions among steps, evaluation, saving, packing and the loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

from engine.findings import Finding
from engine.recipe.model import Recipe
from engine.text import _

# Attention whose mask or kernel transformers builds from the positions, so that packed samples stay apart.
SEPARATING = ("", "eager", "sdpa", "flex_attention")


def _best(recipe: Recipe) -> Iterator[Finding]:
    get = recipe.get
    keys: tuple[str, ...]
    evaluates, saves = get("eval_strategy"), get("save_strategy")
    best = get("load_best_model_at_end")
    if best and saves != "best" and evaluates != saves:
        detail = _(
            "load_best_model_at_end needs a checkpoint at each evaluation: eval_strategy is {e}, save_strategy {s}"
        )
        keys = ("load_best_model_at_end", "eval_strategy", "save_strategy")
        fix = _("give both strategies the same value")
        yield from recipe.conflict(keys, detail.format(e=evaluates, s=saves), fix)
    elif best and evaluates == saves == "steps" and not _meets(get("save_steps"), get("eval_steps")):
        detail = _("load_best_model_at_end needs save_steps to be a multiple of eval_steps: {s} and {e} do not meet")
        keys = ("load_best_model_at_end", "save_steps", "eval_steps")
        fix = _("use the same value for both, steps with steps or shares with shares")
        yield from recipe.conflict(keys, detail.format(s=get("save_steps"), e=get("eval_steps")), fix)
    if (best or saves == "best") and evaluates == "no" and not (best and saves != "best" and evaluates != saves):
        key = "load_best_model_at_end" if best else "save_strategy"
        detail = _("the best checkpoint cannot be known: eval_strategy is no")
        yield from recipe.conflict((key, "eval_strategy"), detail, _("use eval_strategy: steps"))
    metric, greater = recipe.given.get("metric_for_best_model"), recipe.given.get("greater_is_better")
    if saves == "best" and not best and not metric:
        detail = _("save_strategy best needs metric_for_best_model")
        keys = ("save_strategy", "metric_for_best_model")
        yield from recipe.conflict(keys, detail, _("use metric_for_best_model: eval_loss"))
    loss = bool(best) if metric is None else metric.endswith("loss")
    if loss and greater is True:
        detail = _(
            "a loss is better when it is smaller; greater_is_better is true: the worst checkpoint would be taken"
        )
        keys = ("metric_for_best_model" if metric else "load_best_model_at_end", "greater_is_better")
        yield from recipe.conflict(keys, detail, _("delete greater_is_better"))
    if metric and not best and saves != "best" and get("lr_scheduler_type") not in ("reduce_lr_on_plateau", "greedy"):
        detail = _("metric_for_best_model means nothing without load_best_model_at_end or save_strategy best")
        yield from recipe.unused(("metric_for_best_model", "load_best_model_at_end"), detail)


def _meets(save: Any, evaluate: Any) -> bool:
    """Whether every save falls on an evaluation."""
    if not save or not evaluate or (save < 1) != (evaluate < 1):
        return False
    return (Fraction(str(save)) / Fraction(str(evaluate))).denominator == 1


def _evaluation(recipe: Recipe) -> Iterator[Finding]:
    get, given = recipe.get, recipe.given
    has_data = bool(get("eval_dataset_path")) or get("test_size") > 0
    if get("eval_strategy") != "no" and not has_data:
        detail = _(
            "eval_strategy is {e}, but there is nothing to evaluate on: test_size is 0 and eval_dataset_path missing"
        )
        keys = ("eval_strategy", "test_size")
        fix = _("give eval_dataset_path or a test_size above 0, or use eval_strategy: no")
        yield from recipe.conflict(keys, detail.format(e=get("eval_strategy")), fix)
    if get("eval_on_start") and not has_data:
        detail = _("eval_on_start needs evaluation data: test_size is 0 and eval_dataset_path missing")
        yield from recipe.conflict(("eval_on_start", "test_size"), detail, _("give evaluation data, or delete it"))
    if given.get("eval_dataset_path") and given.get("test_size"):
        detail = _("eval_dataset_path is used for evaluation; test_size holds nothing out")
        yield from recipe.conflict(("eval_dataset_path", "test_size"), detail, _("delete one of them"), "warning")
    if given.get("eval_dataset_path") and given.get("eval_dataset_path") == given.get("dataset_path"):
        detail = _("the model would be evaluated on the rows it trains on")
        fix = _("give other data, or delete eval_dataset_path: test_size holds rows out")
        yield from recipe.conflict(("dataset_path", "eval_dataset_path"), detail, fix, "warning")
    for kind in ("reduce_lr_on_plateau", "greedy"):
        if get("lr_scheduler_type") == kind and get("eval_strategy") == "no":
            detail = _("lr_scheduler_type {kind} follows the evaluation; eval_strategy is no").format(kind=kind)
            keys = ("lr_scheduler_type", "eval_strategy")
            yield from recipe.conflict(keys, detail, _("use eval_strategy: steps, or another schedule"))
    if given.get("do_eval") is True and get("eval_strategy") == "no":
        detail = _("do_eval is true; eval_strategy is no")
        yield from recipe.conflict(("do_eval", "eval_strategy"), detail, _("use eval_strategy: steps"))
    for key in ("do_train", "do_predict"):
        if given.get(key) is (key == "do_predict"):
            detail = _("{key} means nothing here: a run trains, and predicts nothing").format(key=key)
            yield from recipe.unused((key,), detail)


def _steps(recipe: Recipe) -> Iterator[Finding]:
    get, given = recipe.get, recipe.given
    ratio = given.get("warmup_ratio")
    if ratio is not None and "warmup_steps" in given and given["warmup_steps"] != ratio:
        detail = _("warmup_ratio and warmup_steps are one setting with two values")
        yield from recipe.conflict(("warmup_ratio", "warmup_steps"), detail, _("keep warmup_steps (a share below 1)"))
    warm, key = get("warmup_steps"), "warmup_steps" if "warmup_steps" in given else "warmup_ratio"
    if get("lr_scheduler_type") == "constant" and warm and recipe.says(key):
        detail = _("lr_scheduler_type constant has no warm-up; {key} is {value}").format(key=key, value=warm)
        keys = ("lr_scheduler_type", key)
        yield from recipe.conflict(keys, detail, _("use constant_with_warmup, or delete {key}").format(key=key))
    options = get("lr_scheduler_kwargs")
    needs = {
        "cosine_with_min_lr": ("min_lr", "min_lr_rate"),
        "cosine_warmup_with_min_lr": ("min_lr", "min_lr_rate"),
        "warmup_stable_decay": ("num_decay_steps",),
    }.get(get("lr_scheduler_type"), ())
    if needs and not (isinstance(options, dict) and any(name in options for name in needs)):
        detail = _("lr_scheduler_type {kind} needs lr_scheduler_kwargs with {names}").format(
            kind=get("lr_scheduler_type"), names=_(" or ").join(needs)
        )
        keys = ("lr_scheduler_type", "lr_scheduler_kwargs")
        yield from recipe.conflict(keys, detail, _("give lr_scheduler_kwargs, or use cosine"))
    limit = get("max_steps")
    if limit > 0 and warm >= 1 and warm >= limit and recipe.says("warmup_steps"):
        detail = _("the run ends after {limit} steps, inside its warm-up of {warm}").format(limit=limit, warm=warm)
        yield from recipe.conflict(("max_steps", "warmup_steps"), detail, _("use a share, for example 0.03"))
    for name, strategy in (("eval_steps", "eval_strategy"), ("save_steps", "save_strategy")):
        steps = get(name)
        if limit > 0 and steps and steps > limit and get(strategy) == "steps":
            detail = _("{name} is {steps}, more than the {limit} steps of the run: it never comes to that").format(
                name=name, steps=steps, limit=limit
            )
            yield from recipe.conflict(("max_steps", name), detail, _("use a share, for example 0.1"), "warning")
    if get("save_strategy") == "no":
        detail = _("save_strategy no: a run that stops early has nothing to resume from")
        yield recipe.finding("no_checkpoints", "warning", detail, _("use save_strategy: steps"), ("save_strategy",))
    if given.get("logging_strategy") == "no":
        detail = _("logging_strategy no: the run screen will have no loss to show")
        yield recipe.finding("no_metrics", "warning", detail, _("use logging_strategy: steps"), ("logging_strategy",))
    if get("dataloader_prefetch_factor") is not None and not get("dataloader_num_workers"):
        detail = _("dataloader_prefetch_factor needs dataloader_num_workers above 0")
        keys = ("dataloader_prefetch_factor", "dataloader_num_workers")
        yield from recipe.conflict(keys, detail, _("give dataloader_num_workers, or delete it"))
    if get("dataloader_persistent_workers") and not get("dataloader_num_workers"):
        detail = _("dataloader_persistent_workers needs dataloader_num_workers above 0")
        keys = ("dataloader_persistent_workers", "dataloader_num_workers")
        yield from recipe.conflict(keys, detail, _("give dataloader_num_workers, or delete it"))


def _loss(recipe: Recipe) -> Iterator[Finding]:
    get = recipe.get
    if recipe.task == "dpo":
        if get("padding_free"):
            detail = _("TRL's DPO has no padding_free at present: it would be off")
            yield from recipe.conflict(("task", "padding_free"), detail, _("delete padding_free"), "warning")
        return
    if recipe.task == "pretrain":
        for key in ("assistant_only_loss", "completion_only_loss"):
            if get(key):
                detail = _("task pretrain learns every token of plain text; {key} is true").format(key=key)
                yield from recipe.conflict(("task", key), detail, _("use task: sft, or delete {key}").format(key=key))
    keys: tuple[str, ...]
    packs, whole = get("packing"), get("max_length") is None
    if packs and whole:
        detail = _("packing fills sequences of max_length, which is null")
        yield from recipe.conflict(("packing", "max_length"), detail, _("give max_length"))
    if get("padding_free") and not packs and not whole:
        detail = _("padding_free without packing does not keep to max_length")
        keys = ("padding_free", "packing", "max_length")
        yield from recipe.conflict(keys, detail, _("use packing: true, or max_length: null"))
    strategy = get("packing_strategy")
    attention = str(get("attn_implementation") or "")
    if packs and strategy != "wrapped" and attention not in SEPARATING and "flash" not in attention:
        detail = _("packed samples may see each other: attention {name} is not known to keep them apart")
        detail = detail.format(name=attention[:60])
        keys = ("packing", "attn_implementation")
        fix = _("use sdpa, flex_attention or flash_attention_2, or packing: false")
        yield from recipe.conflict(keys, detail, fix, "warning")
    if packs and strategy == "wrapped" and recipe.task == "sft":
        mask = recipe.given.get("assistant_only_loss") or recipe.given.get("completion_only_loss")
        detail = _("packing_strategy wrapped cuts conversations anywhere, so that answers lose their questions")
        keys = ("packing", "packing_strategy", "assistant_only_loss")
        fix = _("use packing_strategy: bfd")
        yield from recipe.conflict(keys, detail, fix, "error" if mask else "warning")
    if packs and get("padding_free") and strategy == "wrapped":
        detail = _("padding_free needs sample borders, which packing_strategy wrapped does not keep")
        yield from recipe.conflict(
            ("padding_free", "packing_strategy"), detail, _("use packing_strategy: bfd"), "warning"
        )


RULES: tuple[Callable[[Recipe], Iterator[Finding]], ...] = (_best, _evaluation, _steps, _loss)
