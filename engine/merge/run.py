"""A merge from beginning to end: look, decide, write, verify, seal."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.errors import DoesNotFit, FtuiError
from engine.files import write_json
from engine.findings import Finding
from engine.merge import adapter as adapters
from engine.merge import base as bases
from engine.merge import card, child, combine, folder, fp8, license, vocabulary
from engine.merge import plan as plans
from engine.merge.report import Report
from engine.merge.source import Source
from engine.text import _, duration, gigabytes, number

DTYPES = {"fp32": "F32", "bf16": "BF16", "fp16": "F16", "fp8": fp8.DTYPE}
QUANTIZED = {"nf4": ("nf4", False), "nf4-double": ("nf4", True), "fp4": ("fp4", False), "fp4-double": ("fp4", True)}
OF_RUN = "run"  # quantized as the adapter's run says
ROUNDING = 0.25  # of the adapter's effect: more lost by rounding is worth a word


@dataclass
class Result:
    """What came of a merge. `code` is the command's exit code; with another than 0 there is no output folder."""

    out: Path
    dtype: str | None = None
    tensors_merged: int = 0
    peak_rss_bytes: int | None = None
    seconds: float = 0.0
    write_seconds: float | None = None  # of `seconds`: reading, adding and writing, without start and verification
    max_abs_diff: float | None = None
    verified: bool = False
    code: int = 0
    findings: list[Finding] = field(default_factory=list)
    base: str | None = None
    adapter: str | None = None
    bytes: int | None = None
    checked: dict[str, Any] | None = None
    logits: dict[str, Any] | None = None
    dry_run: bool = False
    gguf: str | None = None
    adapters: list[dict[str, Any]] | None = None  # folder and weight of each, where there are several
    quantized_base: dict[str, Any] | None = None  # how the base was quantized that it was merged into

    def to_json(self) -> dict[str, Any]:
        """The document of `ftui merge --json`."""
        document = {key: value for key, value in vars(self).items() if key not in ("code", "findings")}
        return {**document, "out": str(self.out), "findings": [finding.to_json() for finding in self.findings]}


def merge(
    source: Source,
    out: Path,
    *,
    base: str | None = None,
    dtype: str | None = None,
    logits: bool = True,
    dry_run: bool = False,
    more: Sequence[tuple[Source, float]] = (),
    weight: float = 1.0,
    shard: int | None = None,
    quantized: str | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Result:
    """Merge an adapter into its base.

    Args:
        source: the adapter.
        out: the folder to be made.
        base: the base model's folder or hub name; None asks the adapter and its run.
        dtype: `fp32`, `bf16`, `fp16`, `fp8`, or None for the base's.
        logits: compare what the models say as well, where memory allows.
        dry_run: only look and decide.
        more: further adapters and their weights.
        weight: of `source`.
        shard: the most bytes of a file; None keeps the base's files.
        quantized: merge into the base as it was quantized: `run` (as the adapter's run says) or a name of `QUANTIZED`.
        say: takes progress for people.

    Raises:
        FtuiError: the output's place cannot be used or filled. (What is wrong with adapter and base is a finding.)
    """
    begin = time.monotonic()
    report = Report()
    result = Result(out, adapter=str(source.folder), dry_run=dry_run)
    with contextlib.ExitStack() as stack:
        adapter = adapters.read(source.folder, report)
        if more or weight != 1.0:
            weighed = [(source, weight), *more]
            result.adapters = [{"path": str(one.folder), "weight": own} for one, own in weighed]
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ftui-merge-")))
            adapter = _combined(adapter, weighed, place / "adapter", report)
        plan, base_name = _look(source, adapter, base, dtype and DTYPES[dtype], shard, quantized, report)
        result.findings = report.findings
        if plan is None or report.broken:
            result.code = 1
            result.seconds = round(time.monotonic() - begin, 3)
            return result
        name = next((short for short, long in DTYPES.items() if long == plan.dtype), plan.dtype)
        result.dtype, result.tensors_merged, result.base = name, plan.merged, str(plan.base.folder)
        result.bytes, result.quantized_base = plan.bytes, plan.quantized
        inputs = [source.folder, plan.base.folder, *(one.folder for one, _own in more)]
        folder.check(out, inputs)
        folder.require_room(out, plan.bytes + plans.HEADER_ROOM)
        terms = license.of(plan.base, [base_name, *source.base_names()], source.home)
        license.check(terms, out.name, report)
        if not dry_run:
            with folder.staging(out) as staging:
                _fill(staging, plan, source, base_name, terms, result, report, logits, say)
                result.code = 0 if result.verified else 1 if _not_finite(report) else 4
                if result.verified:
                    _seal(staging, out)
    result.findings = report.findings
    result.seconds = round(time.monotonic() - begin, 3)
    return result


def _combined(
    first: adapters.Adapter | None, weighed: list[tuple[Source, float]], place: Path, report: Report
) -> adapters.Adapter | None:
    """The sum of several adapters as one, in a folder of its own."""
    read = [first, *(adapters.read(source.folder, report) for source, _weight in weighed[1:])]
    parts = [combine.Part(one, own) for one, (_s, own) in zip(read, weighed, strict=True) if one is not None]
    if len(parts) < len(weighed) or report.broken:
        return None
    combine.check(parts, report)
    if report.broken:
        return None
    try:
        combine.write(parts, place)
    except OSError as error:
        raise _unwritable(place, error) from error
    return adapters.read(place, report)


def _look(
    source: Source,
    adapter: adapters.Adapter | None,
    base: str | None,
    dtype: str | None,
    shard: int | None,
    quantized: str | None,
    report: Report,
) -> tuple[plans.Plan | None, str]:
    """Read the headers and decide; as much as can be is said even where the base or the adapter is bad."""
    revision = adapter.config.get("revision") if adapter else None
    revision = revision if isinstance(revision, str) else None
    place = bases.locate(base, source.folder, source.base_names(), revision, report)
    model = bases.read(place[0], report) if place else None
    if adapter is None or model is None or place is None:
        return None, ""
    how = _quantization(source, quantized, model, report)
    plan = plans.draw(model, adapter, dtype, report, shard=shard, quantized=how)
    rows = next((out.source.shape[0] for out in plan.outputs if out.name == model.embedding), None)
    vocabulary.check(model.folder, adapter.folder, rows, report)
    if source.quantized and quantized is None:
        detail = _("it was trained on a quantized base and is merged into the full one")
        report.add("quantized_training", "note", detail)
    return plan, place[1]


def _quantization(source: Source, wanted: str | None, base: bases.Base, report: Report) -> dict[str, Any] | None:
    """How the base is to be quantized before it is merged into."""
    if wanted is None:
        return None
    if wanted == OF_RUN:
        how = source.quantization()
        if how is None:
            detail = _(
                "it is not known how the base was quantized: the adapter belongs to no run that trained in 4 bits"
            )
            fix = _("say it: --quantized-base {names}").format(names="|".join(QUANTIZED))
            report.add("quantized_base", "error", detail, fix=fix)
            return None
    else:
        kind, nested = QUANTIZED[wanted]
        how = {"type": kind, "nested": nested, "dtype": None}
    return {**how, "dtype": how["dtype"] or base.dtype}


def _fill(
    staging: Path,
    plan: plans.Plan,
    source: Source,
    base_name: str,
    terms: license.Terms,
    result: Result,
    report: Report,
    logits: bool,
    say: Callable[[str], None],
) -> None:
    assert result.dtype is not None
    try:
        folder.bring_along(plan.base.folder, plan.adapter.folder, staging)
        write_json(staging / "config.json", plan.config)
        document = card.provenance(plan, source, base_name, result.dtype, terms)
        document["adapters"] = result.adapters
        card.write(staging, document)
    except OSError as error:
        raise _unwritable(staging, error) from error
    job = {
        "staging": str(staging),
        "base": str(plan.base.folder),
        "adapter": str(plan.adapter.folder),
        "plan": plan.to_json(),
        "logits": logits,
        "numbers": plan.numbers,
    }
    begin = time.monotonic()
    for event in child.run(job):
        _take(event, plan, result, report, say, time.monotonic() - begin)
    passed = result.logits is None or result.logits.get("skipped") or result.logits["passed"]
    result.verified = bool(result.checked and not result.checked["bad"] and passed and not _not_finite(report))


def _take(
    event: dict[str, Any],
    plan: plans.Plan,
    result: Result,
    report: Report,
    say: Callable[[str], None],
    seconds: float,
) -> None:
    if event["event"] == "progress":
        left = seconds * (plan.bytes - event["done"]) / max(1, event["done"])
        text = _("{done} of {total} written, {left} left")
        say(text.format(done=gigabytes(event["done"]), total=gigabytes(plan.bytes), left=duration(left)))
    elif event["event"] == "streamed":
        result.peak_rss_bytes, result.write_seconds = event["peak_rss_bytes"], event["seconds"]
        for name in event["not_finite"]:
            report.add(
                "non_finite_weights", "error", _("{name} has numbers that are not finite").format(name=name), name
            )
        if event["pairs"] and event["zero_pairs"] == event["pairs"]:
            report.add("zero_lora_b", "warning", _("all lora_B are zero: the merged model is the base"))
        say(_("written; comparing with PEFT's arithmetic"))
    elif event["event"] == "checked":
        result.checked = {"tensors": event["tensors"], "equal": event["equal"]}
        result.checked["bad"] = event["bad"]
        result.max_abs_diff = event["max_abs_diff"]
        for name in event["bad"]:
            detail = _("{name} is not what PEFT's arithmetic gives").format(name=name)
            report.add("verification_failed", "error", detail, name)
    elif event["event"] == "comparing":
        say(_("comparing what base with adapter and the merged model say"))
    elif event["event"] == "logits":
        result.logits = {key: value for key, value in event.items() if key != "event"}
        _judge(result.logits, report)


def _judge(logits: dict[str, Any], report: Report) -> None:
    if reason := logits.get("skipped"):
        report.add("logits_not_checked", "note", _("the logits were not compared: {reason}").format(reason=reason))
    elif not logits["passed"]:
        detail = _("the merged model's logits differ by {difference}, {tolerance} are tolerated").format(
            difference=number(logits["max_abs_diff"], 4), tolerance=number(logits["tolerance"], 4)
        )
        report.add("verification_failed", "error", detail)
    elif logits["effect"] and logits["max_abs_diff"] > ROUNDING * logits["effect"]:
        detail = _("rounding takes {share} % of what the adapter changes in the logits").format(
            share=number(100 * logits["max_abs_diff"] / logits["effect"])
        )
        report.add("rounding_loss", "warning", detail)


def _not_finite(report: Report) -> bool:
    return any(finding.kind == "non_finite_weights" for finding in report.findings)


def _seal(staging: Path, out: Path) -> None:
    try:
        folder.seal(staging, out)
    except OSError as error:
        raise _unwritable(out, error) from error


def _unwritable(place: Path, error: OSError) -> FtuiError:
    import errno

    kind = DoesNotFit if error.errno in (errno.ENOSPC, errno.EDQUOT) else FtuiError
    return kind(
        _("the merged model cannot be written: {reason}").format(reason=error.strerror or error),
        where=str(place),
        fix=_("free space there, or choose another --out; nothing was left behind"),
        kind="unwritable",
    )
