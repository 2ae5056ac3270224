"""What earlier runs and probes measured, and how it corrects the next plan of their kind (`measured.jsonl`).

A record keeps the run's request, not our prediction of then: it is planned again with today's formulas, and the ratio
of what was measured to that is what a new plan is multiplied by. A kind is everything that decides what is held and
how: model, method, sharding, optimizer, checkpointing. Lengths, batch and rank may differ within a factor.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import FtuiError
from engine.files import Lock
from engine.journal import JournalReader, JournalWriter
from engine.plan import on_cpu, speed
from engine.plan.device import Device
from engine.plan.memory import Phase
from engine.plan.request import Request, parse
from engine.plan.speed import Speed

if TYPE_CHECKING:
    from engine.plan.plan import Result

NAME = "measured.jsonl"
READ_BYTES = 4 << 20  # of the newest records
NEAR = 4.0  # tokens of a micro-batch may differ by this factor
SAME_BAND = 0.03  # half-width of the band where the very same step was measured
SANE = (0.3, 3.0)  # a ratio outside is a wrong measurement, or a change that we do not know of
KIND = (
    "method", "task", "quant", "bf16_master", "lora_dtype", "use_dora", "lora_targets", "lora_modules_to_save",
    "kbit_prepare", "optim", "gradient_checkpointing", "attn_implementation", "loss", "sharding", "cpu_offload",
    "num_gpus", "reshard_after_forward", "framework", "fp8",
)  # fmt: skip


@dataclass(frozen=True)
class Correction:
    """What a measured run says about a plan: GB before and after, and its tokens a second where they count.

    `measured` is 0 where its peak said nothing about this plan's; `spread` is the half-width of its speeds.
    """

    run: str
    measured: float
    predicted: float
    factor: float
    tokens_per_s: float | None = None
    probe: bool = False
    spread: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """As it stands in `ftui plan --json` and plan.json."""
        return {
            "run": self.run,
            "measured_gb": round(self.measured / 1e9, 2),
            "predicted_gb": round(self.predicted / 1e9, 2),
            "factor": round(self.factor, 4),
            "tokens_per_s": self.tokens_per_s,
            "probe": self.probe,
        }


@dataclass(frozen=True)
class Record:
    """One line of the file, parsed."""

    run: str
    request: Request
    dataset: str | None
    epochs: float
    memory: float | None  # torch's allocated peak; on the processor the resident memory of the run
    tokens_per_s: float | None  # of all ranks, without padding
    card: str | None
    batch_tokens: float | None = None  # of a micro-batch on average, without padding
    probe: bool = False
    spread: float = 0.0


@dataclass
class History:
    """The records of a workspace, newest last; `dataset` is that of the plans to come."""

    lines: list[dict[str, Any]]
    dataset: str | None = None
    _parsed: dict[int, Record | None] = field(default_factory=dict)
    _planned: dict[tuple[int, str | None], Result] = field(default_factory=dict)

    def about(self, dataset: Any) -> History:
        """The same records, for plans with these data."""
        return dataclasses.replace(self, dataset=None if dataset is None else str(dataset))

    def correct(self, result: Result) -> Result:
        """The result with what the nearest run of its kind measured; the same result where there is none."""
        from engine.plan.plan import card_name, evaluate

        card = card_name(result)
        for index in self._nearest(result.request):
            record = self._parsed[index]
            assert record is not None
            if (index, card) not in self._planned:
                plain = dataclasses.replace(result.context, server=None, history=None)
                self._planned[index, card] = evaluate(record.request, plain)
            corrected = self._by(result, record, self._planned[index, card])
            if corrected is not None:
                return corrected
        return result

    def _nearest(self, r: Request) -> list[int]:
        """The records of the request's kind, the most alike first, then whole runs before probes, then the newest."""
        found = []
        for index in range(len(self.lines) - 1, -1, -1):
            asked = self.lines[index].get("request") or {}
            if asked.get("method", "lora") != r.method or asked.get("num_gpus", 1) != r.num_gpus:
                continue  # parsing is the slow part
            record = self._record(index)
            if record is None or not same_kind(record.request, r):
                continue
            ratio = max(record.request.tokens / r.tokens, r.tokens / record.request.tokens)
            if ratio <= NEAR:
                found.append((ratio, record.probe, -index))
        return [-index for _ratio, _probe, index in sorted(found)]

    def _record(self, index: int) -> Record | None:
        if index not in self._parsed:
            self._parsed[index] = _parse(self.lines[index])
        return self._parsed[index]

    def _by(self, result: Result, record: Record, planned: Result) -> Result | None:
        from engine.plan import plan

        r, on_host = result.request, result.request.gpu == on_cpu.CPU
        factor, measured, predicted = 1.0, 0.0, 0.0
        same = record.request.tokens == r.tokens and record.request.lora_r == r.lora_r
        if record.memory is not None:
            predicted = planned.device.device if on_host else planned.memory.peak.total
            factor, measured = record.memory / predicted, record.memory
            # Rows shorter than max_length hold less: that says nothing about other data, or about rows not seen yet.
            if factor < 1 and not r.packing and not (record.dataset == self.dataset and record.epochs >= 1):
                factor, predicted = self._by_its_rows(record, on_host, record.memory)
                measured, same = (record.memory if factor < 1 else 0.0), False
        rate = self._rate(result, record, planned)
        if not SANE[0] <= factor <= SANE[1] or (not measured and rate is None):
            return None
        m, d, half = result.memory, result.device, result.band
        if measured:
            more = (d.device if on_host else m.peak.total) * (factor - 1)
            m = dataclasses.replace(m, phases=tuple(Phase(
                p.name, {part: size * factor for part, size in p.parts.items()}) for p in m.phases
            ))  # fmt: skip
            most = max(d.device, result.context.capacity or math.inf)  # the allocator makes room before it fails
            d = Device(d.reserved + more, min(d.device + more, most), d.needs + more, d.overhead)
            if same:
                half = min(half, SAME_BAND)
        verdict = plan.verdict(m, d, half, result.context.capacity)
        note = Correction(
            record.run, measured, predicted, factor, None if rate is None else round(rate, 1), record.probe,
            record.spread,
        )  # fmt: skip
        changed = dataclasses.replace(result, memory=m, device=d, band=half, verdict=verdict, correction=note)
        if rate is None:
            return changed
        before = result.speed
        flops = speed.flops_per_token(r) if before is None else before.flops
        limit = "compute" if before is None else before.limited_by
        return plan.at_speed(changed, Speed(rate / r.num_gpus, rate, flops, limit))

    @staticmethod
    def _by_its_rows(record: Record, on_host: bool, measured: float) -> tuple[float, float]:
        """How much less than its rows' average length would have taken was needed, and that length's prediction.

        The largest micro-batch was at least as large as the average one, so this is no less than the true factor.
        """
        from engine.plan.plan import Context, evaluate

        r, share = record.request, (record.batch_tokens or 0.0) / record.request.tokens
        length = int(r.max_length * share)
        if not 0 < length <= r.max_length:
            return 1.0, 0.0
        shorter = evaluate(r.replace(max_length=length), Context.bare())
        predicted = shorter.device.device if on_host else shorter.memory.peak.total
        return min(1.0, measured / predicted), predicted

    def _rate(self, result: Result, record: Record, planned: Result) -> float | None:
        """Tokens a second that the measured run promises here, padding included, as plans count them."""
        from engine.plan.plan import card_name
        from engine.plan.tokens import useful_share

        share = useful_share(record.request)
        if record.tokens_per_s is None or share is None or record.card != card_name(result):
            return None
        measured = record.tokens_per_s / share
        if result.speed is not None and planned.speed is not None:
            return measured * result.speed.total / planned.speed.total
        same = record.request.tokens == result.request.tokens and record.request.max_length == result.request.max_length
        return measured if same else None


def same_kind(a: Request, b: Request) -> bool:
    """Whether one's measurement speaks of the other."""
    if (a.gpu == on_cpu.CPU) != (b.gpu == on_cpu.CPU) or a.shape.parameters != b.shape.parameters:
        return False
    if a.shape.family != b.shape.family:
        return False
    return all(getattr(a, name) == getattr(b, name) for name in KIND)


def _parse(line: dict[str, Any]) -> Record | None:
    measured = line["measured"]
    try:
        request = parse(line["request"])
    except (FtuiError, KeyError, TypeError):  # a model that is gone, or a line of a later version
        return None
    return Record(
        run=str(line.get("run") or "?"),
        request=request,
        dataset=line.get("dataset"),
        epochs=_number(line.get("epochs")) or 0.0,
        memory=_number(measured.get("memory")),
        tokens_per_s=_number(measured.get("tokens_per_s")),
        card=line.get("card"),
        batch_tokens=_number(measured.get("batch_tokens")),
        probe=line.get("probe") is True,
        spread=_number(measured.get("spread")) or 0.0,
    )


def _is_measured(line: dict[str, Any]) -> bool:
    return line.get("event") == "measured" and all(isinstance(line.get(key), dict) for key in ("request", "measured"))


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else None


def read(home: Path, dataset: Any = None) -> History:
    """The records of a workspace; of each run the newest. A file that cannot be read is an empty one."""
    path = home / NAME
    try:
        reader = JournalReader(path, max(0, path.stat().st_size - READ_BYTES))
        lines: Iterable[dict[str, Any]] = [line for line in reader.all() if _is_measured(line)]
    except OSError:
        lines = []
    newest = {str(line.get("run")): line for line in lines}  # a later line of a run stands where its first stood
    return History(list(newest.values())).about(dataset)


def store(home: Path, record: dict[str, Any]) -> None:
    """Append a record; several runs may end at once.

    Raises:
        OSError: the workspace cannot be written.
    """
    with Lock(home / f".{NAME}.lock").held():
        writer = JournalWriter(home / NAME, format=1)
        try:
            writer.append("measured", **record)
        finally:
            writer.close()
