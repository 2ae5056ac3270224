"""The words of a plan that the command and the planner screen share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.plan import mounts
from engine.plan.mounts import Mount
from engine.plan.on_cpu import CPU
from engine.plan.plan import Result
from engine.text import _, gigabytes, money, ngettext, number, when

if TYPE_CHECKING:
    from engine.run.probe import Probed

GB = 1e9
METHODS = ("full", "lora", "qlora")


def gb(size: float, digits: int = 1) -> str:
    """Bytes as a number of GB."""
    return number(size / GB, digits)


def on_cpu(result: Result) -> bool:
    """Whether the plan is for a processor."""
    return result.request.gpu == CPU


def phase(name: str) -> str:
    """A phase of a step."""
    return {
        "loss": _("the loss"),
        "backward": _("backward, one layer recomputed"),
        "end of backward": _("the end of backward"),
        "step": _("the optimizer's step"),
        "evaluation": _("evaluation"),
        "load": _("loading"),
    }[name]


def parts(result: Result) -> list[tuple[str, str, float]]:
    """What the peak is made of, without what is next to nothing: key, name, bytes."""
    names = {
        "weights": _("weights"), "gradients": _("gradients"), "optimizer": _("optimizer"),
        "activations": _("activations"), "logits": _("logits"), "transients": _("transients"),
        "overhead": _("libraries, heap") if on_cpu(result) else _("context, cache"),
    }  # fmt: skip
    peak = result.memory.peak
    rows = [(key, names[key], size) for key, size in peak.parts.items() if size >= 5e6]
    return [*rows, ("overhead", names["overhead"], result.device.device - peak.total)]


def machine(result: Result) -> str:
    """What the plan is held against."""
    r, ctx = result.request, result.context
    if on_cpu(result):
        return _("this machine's processor")
    card = ctx.card.id if ctx.card else (r.gpu or (_("GPU") if ctx.capacity is None else _("this machine")))
    return f"{r.num_gpus}x {card}"


def needs(result: Result) -> str:
    """How much it takes, and what is sure about that."""
    d = result.device
    if on_cpu(result):
        return _("needs {needs} GB of host memory (± {band} %)").format(
            needs=gb(d.needs), band=number(100 * result.band)
        )
    return _("needs {needs} GB (allocated {low} to {high})").format(
        needs=gb(d.needs), low=gb(result.low), high=gb(result.high)
    )


def room(result: Result) -> str:
    """How much is left, or missing; nothing without a card."""
    spare = result.spare
    if spare is None:
        return ""
    if spare >= 0:
        return _("{gb} GB to spare").format(gb=gb(spare))
    return _("{gb} GB too much").format(gb=gb(-spare))


def corrected(result: Result) -> str:
    """Which measured run the figures were corrected by; nothing where none was."""
    found = result.correction
    if found is None:
        return ""
    if not found.measured:
        return _("speed as measured by {run}").format(run=found.run)
    return _("corrected by {run}: measured {measured} GB, predicted {predicted}").format(
        run=found.run, measured=gb(found.measured), predicted=gb(found.predicted)
    )


def probe(probed: Probed, result: Result) -> list[str]:
    """What a probe measured, and whether the plan's memory is that or still the estimate."""
    found = probed.to_json()
    text = ngettext("{n} step of {time} s", "{n} steps of {time} s each", probed.steps).format(
        n=probed.steps, time=number(found["step_time_s"], 2)
    )
    parts = [text, _("{rate} tokens/s without padding").format(rate=number(found["tokens_per_s"]))]
    if found["memory_gb"] is not None:
        parts.append(_("peak {gb} GB").format(gb=number(found["memory_gb"], 2)))
    lines = [" · ".join(parts)]
    correction = result.correction
    if correction is None or not correction.measured:
        lines.append(_("the memory above is still the estimate: these rows were shorter than max_length"))
    if probed.cached:
        day = when(probed.made)
        lines.append(_("remembered from {when}: recipe, data, GPUs and versions are the same").format(when=day))
    return lines


def unknown_time() -> str:
    """Why there is no time: nothing is known of how fast this machine is."""
    return _("not known for this machine: a probe or the first run measures it")


def speed(result: Result) -> str:
    """Tokens a second and what they rest on."""
    assert result.speed is not None
    rate = number(result.speed.total)
    if result.basis == "probe":
        return _("{rate} tokens/s, from a probe").format(rate=rate)
    if result.timed_by_a_run:
        return _("{rate} tokens/s, measured").format(rate=rate)
    limits = {
        "compute": _("computing"), "memory": _("memory bandwidth"), "communication": _("communication"),
        "optimizer": _("the optimizer"),
    }  # fmt: skip
    return _("{rate} tokens/s, an estimate (limited by {what})").format(rate=rate, what=limits[result.speed.limited_by])


def cost(row: dict[str, Any]) -> str:
    """What a run costs on one server."""
    amount = money(row["amount"], row["currency"])
    if "converted" in row:
        other = row["converted"]
        amount += f" = {money(other['amount'], other['currency'])}"
        if other["rate_of"]:
            amount += _(" (rate of {day})").format(day=other["rate_of"])
    vat = _(" excl. VAT") if row["vat"] == "excl" else ""
    if row["period"] == "hour":
        price = _("{price} an hour").format(price=money(row["price"], row["currency"]))
        return f"{amount}{vat}  {row['server']}, {price}"
    return _("{amount}{vat}  {server}: {share} % of {due} due").format(
        amount=amount,
        vat=vat,
        server=row["server"],
        share=number(100 * row["share_of_lease"] / max(1.0, round(row["due"] / row["price"])), 1),
        due=money(row["due"], row["currency"]),
    )


def files(result: Result) -> str:
    """What lies on disk at the worst moment."""
    s = result.storage
    unit, scale = ("GB", 1e9) if s.total >= 1e9 else ("MB", 1e6)
    base, one, merged = (number(size / scale, 1) for size in (s.base, s.checkpoint, s.merged))
    return _("{all} {unit}: base {base} · {n} checkpoints of {one} · merged {merged}").format(
        all=number(s.total / scale), unit=unit, base=base, n=s.kept + 2, one=one, merged=merged
    )


def room_on(mount: Mount) -> str:
    """What is free on a disk of this machine, and what comes onto it."""
    return _("{mount}: {free} free, {needs} needed").format(
        mount=mount.point, free=gigabytes(mount.free), needs=gigabytes(mount.needs)
    )


def host(result: Result) -> str:
    """Host memory beside the GPUs."""
    s = result.storage
    return _("load {load} GB · run {run} GB · merge {merge} GB of host memory").format(
        load=gb(s.host_load, 0), run=gb(s.host_run, 0), merge=gb(s.host_merge, 0)
    )


def warnings(result: Result) -> list[str]:
    """What does not fit beside the cards' memory, and what the count rests on."""
    found = []
    found += disks(result)
    return found


def disks(result: Result) -> list[str]:
    """What the disks do not hold, and where it could go instead."""
    spread = result.spread
    if result.mounts:
        found = [mounts.shortage(mount) for mount in result.mounts if not mount.fits]
        return [*found, mounts.remedy(spread)] if found else []
    if not spread or not spread["reason"]:
        return []
    if not spread["fits"]:
        return [_("the server's drives cannot hold them: keep fewer checkpoints, or move them away")]
    text = _("more than one drive holds: spread the checkpoints over {count}, {each} on each")
    return [text.format(count=spread["drives"], each=spread["per_drive"])]
