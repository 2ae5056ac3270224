"""`ftui plan`: will it fit, how long, how much, and what to change."""

from __future__ import annotations

import argparse
import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import FtuiError, UsageError
from engine.text import _
from tui.output import Output

if TYPE_CHECKING:
    from engine.plan.draft import Draft

DOES_NOT_FIT = 3


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add("words", nargs="*", metavar="RECIPE | key=value", help=_("a recipe (file or name), and values over it"))
    add("--from", dest="source", metavar="FILE", help=_("many requests, one JSON object a line"))
    add("--all", action="store_true", help=_("compare all methods on all servers of the catalogue"))
    add("--dry-run-step", action="store_true", help=_("run the real training step on tensors without memory as well"))
    add("--probe", type=int, metavar="N", help=_("train N real steps of the recipe here, and plan with what they took"))
    add("--model", metavar="M", help=_("a folder with config.json, or a model's name"))
    add("--method", choices=("full", "lora", "qlora"))
    add("--server", metavar="S", help=_("for example 8xH200, or an id of the catalogue"))
    add("--gpu", metavar="CARD", help=_("for example H100"))
    add("--gpu-memory-gb", type=float, metavar="GB", help=_("memory of a card that the catalogue does not know"))
    add("--num-gpus", type=int, metavar="N")
    add("--max-length", type=int, metavar="N", help=_("tokens of a row"))
    add("--per-device-train-batch-size", "--batch", dest="batch", type=int, metavar="N")
    add("--global-batch-size", type=int, metavar="N")
    add("--lora-r", type=int, metavar="R")
    add("--sharding", metavar="KIND", help=_("auto, none, ddp, fsdp2, zero2, zero3 or pipeline"))
    add("--rows", type=int, metavar="N", help=_("rows of the data, for the time"))
    add("--train-tokens", type=float, metavar="N", help=_("tokens of one epoch, for the time"))
    add("--max-steps", type=int, metavar="N")
    add("--num-train-epochs", type=float, metavar="N")
    add("--currency", metavar="CODE", help=_("show amounts in it too, by the rates of your servers.yaml"))


def run(args: argparse.Namespace, out: Output) -> int:
    """Plan it."""
    _refuse_together(args)
    if args.source:
        return _many(args, out)
    from engine.plan import measured, request
    from engine.plan.plan import plan
    from engine.plan.servers import user_file
    from engine.workspace import locate

    asked = _asked(args)
    values, workspace = asked.values, locate(args.home)
    history = measured.read(workspace.root, asked.dataset)
    if args.all:
        return _all(values, history, out)
    probed = None
    if args.probe is not None:
        from engine.run import probe

        assert asked.draft is not None
        draft = asked.draft
        probed = probe.run(workspace.prepare(), draft.path, draft.overrides(), args.probe, out.progress)
        history = measured.History([probed.record]).about(asked.dataset)
    home = workspace.root if asked.here else None
    result = plan(request.parse(values), user=user_file(), currency=args.currency, history=history, home=home)
    document = result.to_json()
    if probed is not None:
        document["probe"] = probed.to_json()
    if not out.as_json:
        from tui.plan_text import show, show_probe

        show(result, out)
        if probed is not None:
            show_probe(probed, result, out)
    code = DOES_NOT_FIT if result.problems else 0
    if args.dry_run_step:
        try:
            code = _dry_run(result, values.get("config"), workspace, document, out) or code
        except FtuiError as error:  # the closed form stands whatever becomes of the dry run
            if not out.as_json:
                raise
            document["dry_run"] = {"error": error.to_json()}
            code = error.exit_code
    if out.as_json:
        out.json(document)
    return code


def _refuse_together(args: argparse.Namespace) -> None:
    """Options that make no sense beside each other.

    Raises:
        UsageError: there are some.
    """
    if args.dry_run_step and (args.source or args.all):
        raise UsageError(_("--dry-run-step takes one plan"), fix=_("leave --from and --all out"))
    if args.probe is None:
        return
    if args.source or args.all:
        raise UsageError(_("--probe takes one plan"), fix=_("leave --from and --all out"))
    if args.server or args.gpu or args.gpu_memory_gb:
        raise UsageError(
            _("a probe trains on this machine, not on others"), where="--probe",
            fix=_("leave --server and --gpu out, or run it there"),
        )  # fmt: skip
    if not any("=" not in word for word in args.words):
        raise UsageError(
            _("a probe needs a recipe: a model alone has no data to train on"), where="--probe",
            fix=_("`ftui plan RECIPE --probe 10`"),
        )  # fmt: skip


def _dry_run(result: Any, config: Any, workspace: Any, document: dict[str, Any], out: Output) -> int:
    """Run the step dry, show both tiers side by side, and give the exit code that follows from it."""
    from engine.plan import dryrun

    dry = dryrun.run(result, config, workspace.cache_dir / "dryrun", out.progress)
    document["dry_run"] = dry.to_json(result)
    if not out.as_json:
        from tui.plan_dryrun import show

        show(result, dry, out)
    return DOES_NOT_FIT if dry.verdict(result) == "no" else 0


def _many(args: argparse.Namespace, out: Output) -> int:
    """`--from`: one result or one error a line; an error stops nothing, and the exit code tells of the worst."""
    import orjson

    from engine.plan import request
    from engine.plan.plan import plan
    from engine.plan.servers import user_file

    try:
        lines = Path(args.source).read_bytes().splitlines()
    except OSError as error:
        raise UsageError(
            _("the requests cannot be read: {reason}").format(reason=error.strerror or str(error)), where=args.source
        ) from error
    code, user = 0, user_file()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        identity: Any = None
        try:
            try:
                values = orjson.loads(line)
            except ValueError as error:
                raise UsageError(_("not a JSON object: {reason}").format(reason=str(error)[:100])) from error
            identity = values.get("id") if isinstance(values, dict) else None
            result = plan(request.parse(values), user=user)
        except FtuiError as error:
            error.where = f"{args.source}:{number}" + (f" {error.where}" if error.where else "")
            out.json({"id": identity, "error": error.to_json()})
            code = 2
            continue
        out.json(result.to_json())
        if result.problems and code == 0:
            code = DOES_NOT_FIT
    return code


def _all(values: dict[str, Any], history: Any, out: Output) -> int:
    from engine.plan import everything, request
    from engine.plan.servers import user_file

    rows = everything.compare(request.parse(values), user_file(), history)
    if out.as_json:
        out.json({"model": values.get("model"), "rows": [row.to_json() for row in rows]})
    else:
        from tui.plan_text import show_all

        show_all(rows, out)
    return 0 if any(row.result.verdict == "fits" for row in rows) else DOES_NOT_FIT


@dataclass(frozen=True)
class Asked:
    """What the arguments describe: a request, and the draft of a recipe that it comes from."""

    values: dict[str, Any]
    draft: Draft | None = None
    here: bool = False  # on this machine

    @property
    def dataset(self) -> Any:
        """The recipe's data, which measured runs may have been about."""
        return None if self.draft is None else self.draft.said.get("dataset_path")


def _asked(args: argparse.Namespace) -> Asked:
    recipe = next((word for word in args.words if "=" not in word), None)
    pairs = [word for word in args.words if word != recipe]
    given = {
        "model": args.model, "method": args.method, "server": args.server, "gpu": args.gpu,
        "gpu_memory_gb": args.gpu_memory_gb, "num_gpus": args.num_gpus, "max_length": args.max_length,
        "per_device_train_batch_size": args.batch, "global_batch_size": args.global_batch_size,
        "lora_r": args.lora_r, "sharding": args.sharding, "rows": args.rows, "train_tokens": args.train_tokens,
        "max_steps": args.max_steps, "num_train_epochs": args.num_train_epochs,
    }  # fmt: skip
    given = {key: value for key, value in given.items() if value is not None}
    if recipe:
        return _from_recipe(recipe, pairs, given, elsewhere=args.all)
    values = _plain(pairs, given)
    here = not ({"gpu", "server", "gpu_memory_gb"} & set(values))
    if here and not args.all:
        values |= _local_gpus(values)
    return Asked(values, here=here)


def _plain(pairs: list[str], given: dict[str, Any]) -> dict[str, Any]:
    import yaml

    if "model" not in given and not any(pair.startswith(("model=", "config=")) for pair in pairs):
        raise UsageError(
            _("there is nothing to plan"), fix=_("`ftui plan RECIPE`, or `ftui plan --model M --method lora`")
        )
    # what the engine trains with: the versions and the trainer's defaults
    values: dict[str, Any] = {"transformers": "5", "max_length": 2048, "optim": "adamw_torch_fused"}
    for pair in pairs:
        key, _sign, text = pair.partition("=")
        try:
            values[key.strip()] = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise UsageError(_("'{pair}' is not a value").format(pair=pair[:80]), where=key[:40]) from error
    values |= given
    if values.get("method") == "qlora":
        values.setdefault("lora_dtype", "bf16")  # what TRL trains on a quantised base
    return values


CHANGES = (
    "method", "max_length", "per_device_train_batch_size", "global_batch_size", "lora_r", "sharding", "max_steps",
    "num_train_epochs",
)  # fmt: skip
"""Options that are keys of a recipe; the others say what it is held against, and how long its data are."""


def _from_recipe(name: str, pairs: list[str], given: dict[str, Any], *, elsewhere: bool) -> Asked:
    """As the planner screen sees it: a draft of the recipe, held against this machine or another."""
    from engine.plan.draft import Here, open_recipe

    gpus = given.pop("num_gpus", None)
    found = not ({"gpu", "gpu_memory_gb"} & set(given))
    if elsewhere or not found:
        here = Here(given.pop("gpu", None), given.pop("gpu_memory_gb", None), gpus or 1)
    else:
        here = Here.look()
        if gpus is not None:  # of this machine's cards, or of cards that nobody named
            here = dataclasses.replace(here, count=min(gpus, here.count)) if here.count else Here(None, None, gpus)
    draft = open_recipe(name, here, pairs)
    if draft.problems:
        first = draft.problems[0]
        raise UsageError(first.detail, where=f"{name}: {first.key or ''}".rstrip(": "), fix=first.fix or None)
    if "model" in given:
        draft = draft.change("model_name_or_path", given.pop("model"))
    for key in CHANGES:
        if key in given:
            draft = draft.change(key, given.pop(key))
    draft = draft.on(given.pop("server", ""))
    return Asked(draft.request() | given, draft, here=found and not draft.server)


def _local_gpus(values: dict[str, Any]) -> dict[str, Any]:
    """This machine's cards, when it has any."""
    from engine.hardware.gpus import Probe

    with Probe() as probe:
        cards = probe.list()
    if not cards:
        return {}
    first = cards[0]
    return {
        "gpu": first.name, "gpu_memory_gb": first.memory_total / 1e9 if first.memory_total else None,
        "num_gpus": values.get("num_gpus", len(cards)),
    }  # fmt: skip
