"""A plan for people, in 80 columns: one bar by component, the verdict, time, money, disk, and what to change."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from engine.plan.everything import Row
from engine.plan.plan import Result, describe_verdict
from engine.plan.servers import break_evens
from engine.text import _, duration, money, number
from tui import plan_words as words
from tui.output import Output, width

if TYPE_CHECKING:
    from engine.run.probe import Probed

COLUMNS = 80
BAR = 40
STYLE = {"fits": "ok", "tight": "warning", "no": "error", None: "dim"}
MARK = {"fits": "✓", "tight": "!", "no": "✗", None: "·"}


def show(result: Result, out: Output) -> None:
    """Print one plan."""
    _head(result, out)
    _bars(result, out)
    _verdict(result, out)
    out.line()
    _time(result, out)
    _storage(result, out)
    _advice(result.advice, out)
    for note in result.request.notes:
        _say(out, _("note: {text}").format(text=note), "dim", indent=0)


def show_probe(probed: Probed, result: Result, out: Output) -> None:
    """Print what the steps of a probe took, and what the plan has of it."""
    out.line()
    for index, text in enumerate(words.probe(probed, result)):
        _say(out, text, label=_("PROBE") if index == 0 else "")


def _say(out: Output, text: str, style: str | None = None, label: str = "", indent: int = 9) -> None:
    """A text behind its label, broken between words where it is wider than the terminal's 80 columns."""
    room = COLUMNS - indent
    lines, line = [], ""
    for word in text.split(" "):
        if line and width(line) + 1 + width(word) > room:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    for index, part in enumerate([*lines, line]):
        out.line(_cell(label if index == 0 else "", indent) + part, style)


def _head(result: Result, out: Output) -> None:
    r = result.request
    trained = result.memory.state.trained
    method = {"full": _("full"), "lora": _("LoRA r{r}"), "qlora": _("QLoRA r{r}")}[r.method].format(r=r.lora_r)
    out.line(f"{r.model}  {method}  {words.machine(result)}", "bold")
    facts = _("{total} weights, {trained} trained · {length} tokens x {batch} a GPU, {steps} a step · {sharding}")
    if words.on_cpu(result):
        facts = _("{total} weights, {trained} trained · {length} tokens x {batch}, {steps} a step")
    _say(
        out,
        facts.format(
            total=_count(r.shape.parameters),
            trained=_count(trained),
            length=number(r.max_length),
            batch=r.per_device_train_batch_size,
            steps=r.accumulation * r.per_device_train_batch_size * r.data_parallel,
            sharding=_sharding(r),
        ),
        "dim",
        indent=0,
    )
    if result.sharding_reason and r.num_gpus > 1:
        _say(out, _("sharding: {reason}").format(reason=result.sharding_reason), "dim", indent=0)
    out.line()


def _sharding(r: Any) -> str:
    offload = _(" + offload") if r.cpu_offload else ""
    kind: str = r.sharding
    return {"none": _("one GPU"), "pipeline": _("layers in turn")}.get(kind, kind) + offload


def _count(value: float) -> str:
    for unit, scale in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= scale:
            return f"{number(value / scale, 2 if value < 10 * scale else 1)}{unit}"
    return number(value)


def _bars(result: Result, out: Output) -> None:
    """One row for each part of the phase that peaks, drawn to the card's scale."""
    capacity, peak = result.context.capacity, result.memory.peak
    parts = words.parts(result)
    scale = max(capacity or 0.0, sum(size for _key, _name, size in parts))
    title = _("IN MEMORY, at its peak in: {phase}") if words.on_cpu(result) else _("PER GPU, at its peak in: {phase}")
    title = title.format(phase=words.phase(peak.name))
    limit = _("of {gb} GB").format(gb=words.gb(capacity)) if capacity else ""
    out.line(title + " " * max(1, COLUMNS - width(title) - width(limit)) + limit)
    before = 0.0
    for key, name, size in parts:
        start, end = BAR * before / scale, BAR * (before + size) / scale
        bar = " " * round(start) + _block() * max(1 if size else 0, round(end) - round(start))
        before += size
        style = "accent" if key != "overhead" else "dim"
        out.line(f"  {_cell(name, 16)} {words.gb(size, 2):>9} GB  {bar}"[:COLUMNS].rstrip(), style)


def _block() -> str:
    return "█" if (sys.stdout.encoding or "").lower().startswith("utf") else "#"


def _cell(text: str, columns: int) -> str:
    return text + " " * max(0, columns - width(text))


def _verdict(result: Result, out: Output) -> None:
    _say(out, words.needs(result), indent=2)
    said = ", ".join(part for part in (describe_verdict(result), words.room(result)) if part)
    mark = MARK[result.verdict] if _block() == "█" else "="
    out.line(f"  {mark} {said}", STYLE[result.verdict])
    if result.context.card is not None:
        out.line(_("    the driver will show about {gb} GB").format(gb=words.gb(result.device.device)), "dim")
    if text := words.corrected(result):
        _say(out, text, "dim", indent=4)
    rule = result.cross_check()
    if rule["usable_gb"] is not None and not words.on_cpu(result):
        text = _("a provider's rule of thumb: {rule} GB in all, of {usable} GB usable")
        _say(out, text.format(rule=number(rule["rule_gb"]), usable=number(rule["usable_gb"])), "dim", indent=4)
    if result.verdict == "tight":
        out.line(_("    the error of the prediction is ±{share} %").format(share=number(100 * result.band)), "dim")


def _time(result: Result, out: Output) -> None:
    if result.speed is None:
        _say(out, words.unknown_time(), label=_("TIME"))
        return
    _say(out, words.speed(result), label=_("TIME"))
    if result.hours is None:
        out.line(" " * 9 + _("how long it takes: give --rows, --train-tokens or --max-steps"), "dim")
        return
    times = result.time()
    out.line(
        " " * 9
        + _("{hours} ({low} to {high})").format(
            hours=duration(result.hours * 3600),
            low=duration(times["low"] * 3600),
            high=duration(times["high"] * 3600),
        )
    )
    for row in break_evens(result.context.offers, result.context.card, result.request.num_gpus)[:1]:
        if result.hours > 0.2 * row["hours"]:
            text = _("{month} is cheaper than {hour} from {hours} hours a month")
            _say(out, text.format(month=row["month"], hour=row["hour"], hours=number(row["hours"])), "dim")
    for index, cost in enumerate(sorted(result.money, key=lambda m: m["amount"])[:3]):
        _say(out, words.cost(result.converted(cost)), label=_("MONEY") if index == 0 else "")


def _storage(result: Result, out: Output) -> None:
    _say(out, words.files(result), label=_("DISK"))
    for mount in (mount for mount in result.mounts if mount.fits):
        _say(out, words.room_on(mount), "dim")
    if not words.on_cpu(result):  # there it is the plan itself
        out.line(_cell(_("HOST"), 9) + words.host(result))
    for text in words.warnings(result):
        _say(out, text, "warning")


def _advice(advice: Sequence[dict[str, Any]], out: Output) -> None:
    if not advice:
        return
    out.line()
    out.line(_("WHAT TO CHANGE"))
    for index, row in enumerate(advice, 1):
        mark = MARK[row["verdict"]] if _block() == "█" else ("+" if row["verdict"] == "fits" else "-")
        facts = [_("{gb} GB").format(gb=number(row["needs_gb"], 1))]
        if row["hours"] is not None:
            facts.append(duration(row["hours"] * 3600))
        elif row.get("speed_ratio") and abs(row["speed_ratio"] - 1) >= 0.01:
            facts.append(_("{ratio}x speed").format(ratio=number(row["speed_ratio"], 2)))
        if row["money"]:
            facts.append(money(row["money"]["amount"], row["money"]["currency"]))
        tail = "  ".join(f"{fact:>9}" for fact in facts)
        room = COLUMNS - width(tail) - 8
        text = row["text"] if width(row["text"]) <= room else row["text"][: room - 1] + "…"
        out.line(f"  {index} {mark} {_cell(text, room)}  {tail}".rstrip())


def show_all(rows: Sequence[Row], out: Output) -> None:
    """Print the comparison: for each method the servers that fit, the cheapest and the fastest marked."""
    headers = [_("method"), _("server"), _("fits"), _("GB"), _("tokens/s"), _("time"), _("cost"), _("sharding"), ""]
    table = []
    for row in rows:
        speed, cost = row.result.speed, row.cost
        marks = [word for word, on in ((_("cheapest"), row.cheapest), (_("fastest"), row.fastest)) if on]
        table.append(
            [
                row.method,
                row.server.id,
                MARK[row.result.verdict],
                number(row.result.device.needs / 1e9, 1),
                number(speed.total) if speed else "",
                duration(row.result.hours * 3600) if row.result.hours is not None else "",
                money(cost["amount"], cost["currency"]) if cost else "",
                row.result.request.sharding + ("+" if row.result.request.cpu_offload else ""),
                " ".join(marks),
            ]
        )
    table.sort(key=lambda line: (line[0] != "qlora", line[0] != "lora", "✓!✗·".index(line[2]), not line[8]))
    out.table(headers, table, right=frozenset((3, 4, 5, 6)))
