"""A plan for people, in 80 columns: one bar by component, the verdict, time, money, disk, and what to change."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from engine.plan.everything import Row
from engine.plan.plan import Result, describe_verdict
from engine.plan.servers import break_evens
from engine.text import _, duration, money, number
from tui.output import Output, width

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
    r, ctx = result.request, result.context
    trained = result.memory.state.trained
    method = {"full": _("full"), "lora": _("LoRA r{r}"), "qlora": _("QLoRA r{r}")}[r.method].format(r=r.lora_r)
    card = ctx.card.id if ctx.card else (r.gpu or (_("GPU") if ctx.capacity is None else _("this machine")))
    out.line(f"{r.model}  {method}  {r.num_gpus}x {card}", "bold")
    facts = _("{total} weights, {trained} trained · {length} tokens x {batch} a GPU, {steps} a step · {sharding}")
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
    peak, d = result.memory.peak, result.device
    capacity = result.context.capacity
    parts = [(name, size) for name, size in peak.parts.items() if size >= 5e6]
    parts.append(("overhead", d.device - peak.total))
    scale = max(capacity or 0.0, sum(size for _name, size in parts))
    title = _("PER GPU, at its peak in: {phase}").format(phase=_phase(peak.name))
    limit = _("of {gb} GB").format(gb=number(capacity / 1e9, 1)) if capacity else ""
    out.line(title + " " * max(1, COLUMNS - width(title) - width(limit)) + limit)
    names = {
        "weights": _("weights"), "gradients": _("gradients"), "optimizer": _("optimizer"),
        "activations": _("activations"), "logits": _("logits"), "transients": _("transients"),
        "overhead": _("context, cache"),
    }  # fmt: skip
    before = 0.0
    for name, size in parts:
        start, end = BAR * before / scale, BAR * (before + size) / scale
        bar = " " * round(start) + _block() * max(1 if size else 0, round(end) - round(start))
        before += size
        style = "accent" if name != "overhead" else "dim"
        out.line(f"  {_cell(names[name], 16)} {number(size / 1e9, 2):>9} GB  {bar}"[:COLUMNS].rstrip(), style)


def _block() -> str:
    return "█" if (sys.stdout.encoding or "").lower().startswith("utf") else "#"


def _cell(text: str, columns: int) -> str:
    return text + " " * max(0, columns - width(text))


def _phase(name: str) -> str:
    return {
        "loss": _("the loss"),
        "backward": _("backward, one layer recomputed"),
        "end of backward": _("the end of backward"),
        "step": _("the optimizer's step"),
        "evaluation": _("evaluation"),
        "load": _("loading"),
    }[name]


def _verdict(result: Result, out: Output) -> None:
    d, capacity = result.device, result.context.capacity
    peak = result.memory.peak.total
    words = describe_verdict(result)
    text = _("needs {needs} GB (allocated {low} to {high}; the driver will show about {device})")
    if result.context.card is None and result.request.gpu is None:
        text = _("needs {needs} GB (allocated {low} to {high})")
    line = text.format(
        needs=number(d.needs / 1e9, 1),
        low=number(result.low / 1e9, 1),
        high=number(result.high / 1e9, 1),
        device=number(d.device / 1e9, 1),
    )
    _say(out, line, indent=2)
    if capacity is not None:
        spare = result.spare or 0.0
        room = (
            _("{gb} GB to spare").format(gb=number(spare / 1e9, 1))
            if spare >= 0
            else _("{gb} GB too much").format(gb=number(-spare / 1e9, 1))
        )
        words = f"{words}, {room}"
    mark = MARK[result.verdict] if _block() == "█" else "="
    out.line(f"  {mark} {words}", STYLE[result.verdict])
    rule = result.cross_check()
    if rule["usable_gb"] is not None:
        text = _("a provider's rule of thumb: {rule} GB in all, of {usable} GB usable")
        _say(out, text.format(rule=number(rule["rule_gb"]), usable=number(rule["usable_gb"])), "dim", indent=4)
    if peak and result.verdict == "tight":
        out.line(_("    the error of the prediction is ±{share} %").format(share=number(100 * result.band)), "dim")


def _time(result: Result, out: Output) -> None:
    if result.speed is None:
        return
    speed = _("{rate} tokens/s, an estimate (limited by {what})").format(
        rate=number(result.speed.total),
        what={
            "compute": _("computing"), "memory": _("memory bandwidth"), "communication": _("communication"),
            "optimizer": _("the optimizer"),
        }[result.speed.limited_by],
    )  # fmt: skip
    _say(out, speed, label=_("TIME"))
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
        _say(out, _cost(result.converted(cost)), label=_("MONEY") if index == 0 else "")


def _cost(cost: dict[str, Any]) -> str:
    amount = money(cost["amount"], cost["currency"])
    if "converted" in cost:
        other = cost["converted"]
        amount += f" = {money(other['amount'], other['currency'])}"
        if other["rate_of"]:
            amount += _(" (rate of {day})").format(day=other["rate_of"])
    vat = _(" excl. VAT") if cost["vat"] == "excl" else ""
    if cost["period"] == "hour":
        price = _("{price} an hour").format(price=money(cost["price"], cost["currency"]))
        return f"{amount}{vat}  {cost['server']}, {price}"
    return _("{amount}{vat}  {server}: {share} % of {due} due").format(
        amount=amount,
        vat=vat,
        server=cost["server"],
        share=number(100 * cost["share_of_lease"] / max(1.0, round(cost["due"] / cost["price"])), 1),
        due=money(cost["due"], cost["currency"]),
    )


def _storage(result: Result, out: Output) -> None:
    s, disk = result.storage, result.disk()
    files = _("base {base} · checkpoint {one} x {count} · merged {merged} · all {total} GB").format(
        base=number(s.base / 1e9, 1),
        one=number(s.checkpoint / 1e9, 1),
        count=s.kept + 2,
        merged=number(s.merged / 1e9, 1),
        total=number(s.total / 1e9),
    )
    _say(out, files, label=_("DISK"))
    spread = disk["spread"]
    if spread and spread["reason"]:
        text = (
            _("more than one drive holds: spread the checkpoints over {count}, {each} on each")
            if spread["fits"]
            else _("the server's drives cannot hold them: keep fewer checkpoints, or move them away")
        )
        _say(out, text.format(count=spread["drives"], each=spread["per_drive"]), "warning")
    out.line(
        _cell(_("HOST"), 9)
        + _("load {load} GB · run {run} GB · merge {merge} GB of host memory").format(
            load=number(s.host_load / 1e9), run=number(s.host_run / 1e9), merge=number(s.host_merge / 1e9)
        )
    )
    server = result.context.server
    if server and server.ram_gb and s.host > server.ram_gb * 1e9:
        out.line(" " * 9 + _("the server has only {gb} GB").format(gb=number(server.ram_gb)), "error")


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
