"""A merge from beginning to end: look, decide, write, verify, seal."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.errors import DoesNotFit, FtuiError
from engine.files import write_json
from engine.findings import Finding
from engine.merge import adapter as adapters
from engine.merge import base as bases
from engine.merge import card, child, folder, vocabulary
from engine.merge import plan as plans
from engine.merge.report import Report
from engine.merge.source import Source
from engine.text import _, duration, gigabytes, number

DTYPES = {"fp32": "F32", "bf16": "BF16", "fp16": "F16"}
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
    say: Callable[[str], None] = lambda text: None,
) -> Result:
    """Merge an adapter into its base.

    Args:
        source: the adapter.
        out: the folder to be made.
        base: the base model's folder or hub name; None asks the adapter and its run.
        dtype: `fp32`, `bf16`, `fp16`, or None for the base's.
        logits: compare what the models say as well, where memory allows.
        dry_run: only look and decide.
        say: takes progress for people.

    Raises:
        FtuiError: the output's place cannot be used or filled. (What is wrong with adapter and base is a finding.)
    """
    begin = time.monotonic()
    report = Report()
    result = Result(out, adapter=str(source.folder), dry_run=dry_run)
    plan, base_name = _look(source, base, dtype and DTYPES[dtype], report)
    result.findings = report.findings
    if plan is None or report.broken:
        result.code = 1
        result.seconds = round(time.monotonic() - begin, 3)
        return result
    name = next((short for short, long in DTYPES.items() if long == plan.dtype), plan.dtype)
    result.dtype, result.tensors_merged, result.base = name, plan.merged, str(plan.base.folder)
    result.bytes = plan.bytes
    folder.check(out, [source.folder, plan.base.folder])
    folder.require_room(out, plan.bytes + plans.HEADER_ROOM)
    if not dry_run:
        with folder.staging(out) as staging:
            _fill(staging, plan, source, base_name, result, report, logits, say)
            result.code = 0 if result.verified else 1 if _not_finite(report) else 4
            if result.verified:
                _seal(staging, out)
    result.findings = report.findings
    result.seconds = round(time.monotonic() - begin, 3)
    return result


def _look(source: Source, base: str | None, dtype: str | None, report: Report) -> tuple[plans.Plan | None, str]:
    """Read the headers and decide; as much as can be is said even where the base or the adapter is bad."""
    adapter = adapters.read(source.folder, report)
    names = source.base_names()
    revision = adapter.config.get("revision") if adapter else None
    place = bases.locate(base, source.folder, names, revision if isinstance(revision, str) else None, report)
    model = bases.read(place[0], report) if place else None
    if adapter is None or model is None or place is None:
        return None, ""
    plan = plans.draw(model, adapter, dtype, report)
    rows = next((out.source.shape[0] for out in plan.outputs if out.name == model.embedding), None)
    vocabulary.check(model.folder, source.folder, rows, report)
    if source.quantized:
        report.add(
            "quantized_training", "note", _("it was trained on a quantized base and is merged into the full one")
        )
    return plan, place[1]


def _fill(
    staging: Path,
    plan: plans.Plan,
    source: Source,
    base_name: str,
    result: Result,
    report: Report,
    logits: bool,
    say: Callable[[str], None],
) -> None:
    assert result.dtype is not None
    try:
        folder.bring_along(plan.base.folder, source.folder, staging)
        write_json(staging / "config.json", plan.config)
        card.write(staging, plan, card.provenance(plan, source, base_name, result.dtype))
    except OSError as error:
        raise _unwritable(staging, error) from error
    job = {
        "staging": str(staging),
        "base": str(plan.base.folder),
        "adapter": str(source.folder),
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
