"""What `ftui backup` prints for people."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from engine.text import _, duration, gigabytes, ngettext, number
from tui.output import Output

if TYPE_CHECKING:
    from engine.backup.capsule import Plan
    from engine.backup.control import Control
    from engine.backup.progress import Progress

EVERY_S = 1.0
PLAIN_EVERY_S = 15.0
BROKEN = ("STALLED", "AUTH_NEEDED", "SOURCE_CHANGED", "FAILED")


def state_name(state: str) -> str:
    """A state in words; the JSON carries the state itself."""
    names = {
        "SEALED": _("only here"),
        "HASHED": _("hashed, not sent"),
        "UPLOADING": _("uploading"),
        "UPLOADED": _("sent, not proved"),
        "VERIFIED_ETAG": _("verified"),
        "VERIFIED_FULL": _("verified in full"),
        "STALLED": _("stalled"),
        "AUTH_NEEDED": _("credentials refused"),
        "SOURCE_CHANGED": _("changed here"),
        "FAILED": _("failed"),
        "PAUSED": _("paused"),
    }
    return names.get(state, state)


def progress_line(document: dict[str, Any]) -> str:
    """What a running backup does, in one line."""
    doing = {
        "hash": _("hashing"),
        "upload": _("sending"),
        "verify": _("verifying"),
        "download": _("fetching"),
    }.get(str(document.get("doing")), str(document.get("doing")))
    parts = [
        _("{doing} {done} of {total}").format(
            doing=doing, done=gigabytes(document["bytes_done"]), total=gigabytes(document["bytes_total"])
        )
    ]
    if band := document.get("rate"):
        parts.append(rate_text(band))
    if document.get("eta_s") is not None:
        low, high = document.get("eta_band_s") or (document["eta_s"], document["eta_s"])
        parts.append(_("{low} to {high} left").format(low=duration(low), high=duration(high)))
    if document.get("state"):
        parts.append(state_name(document["state"]))
    if document.get("reason"):
        parts.append(str(document["reason"])[:120])
    return " · ".join(parts)


def rate_text(band: dict[str, Any]) -> str:
    """A rate as a range."""
    low, high = band["low"], band["high"]
    if high <= 0 or high - low < 0.1 * high:
        return _("{rate} a second").format(rate=gigabytes(band["mid"]))
    return _("{low} to {high} a second").format(low=gigabytes(low), high=gigabytes(high))


class Bar:
    """A line that is written over on a terminal; now and then a line of its own elsewhere."""

    def __init__(self, out: Output) -> None:
        self.out = out
        self.live = sys.stderr.isatty()
        self._shown = time.monotonic() - (EVERY_S if self.live else PLAIN_EVERY_S - 3)
        self._dirty = False

    def show(self, progress: Progress) -> None:
        """Show a pass of our own."""
        if self._due():
            self._line(progress_line(progress.to_json()))

    def show_document(self, document: dict[str, Any]) -> None:
        """Show a pass of another process."""
        if self._due():
            self._line(progress_line(document))

    def count(self, done: int, total: int) -> None:
        """Show files checked."""
        if self._due():
            self._line(_("verified {done} of {total} files").format(done=number(done), total=number(total)))

    def _due(self) -> bool:
        now = time.monotonic()
        if now - self._shown < (EVERY_S if self.live else PLAIN_EVERY_S):
            return False
        self._shown = now
        return True

    def _line(self, text: str) -> None:
        if self.live:
            sys.stderr.write(f"\r\x1b[2K{text}")
            sys.stderr.flush()
            self._dirty = True
        else:
            self.out.note(text)

    def end(self) -> None:
        """Leave a clean line."""
        if self._dirty:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
            self._dirty = False


def show_status(document: dict[str, Any], out: Output) -> None:
    """One run."""
    if document["remote"] is None:
        out.line(_("{run} has no remote: everything is only on this server").format(run=document["run"]), "warning")
        out.line(
            _("give one: `ftui backup setup`, then `ftui backup now {run} --remote …`").format(run=document["run"])
        )
        return
    out.field(_("run"), f"{document['run']} → {document['remote']}")
    rows = [*document["others"], *document["checkpoints"]]
    cells = [
        [
            row["name"].rpartition("/")[2] if row["step"] is not None else _named(row["name"]),
            state_name(row["state"]),
            gigabytes(row["bytes"]),
            number(row["files"]),
            duration(time.time() - row["verified_at"]) if row["verified_at"] else "-",
            "; ".join(str(finding["detail"]) for finding in row["findings"][:2])
            or ("" if row["wanted"] else _("not wanted any more")),
        ]
        for row in rows
    ]
    headers = ["", _("state"), _("size"), _("files"), _("age of proof"), ""]
    out.table(headers, cells, right=frozenset({2, 3, 4}), kept=5)
    if running := document.get("progress"):
        out.field(_("now"), progress_line(running))
    elif document["missing_bytes"]:
        known = document["forecast"]
        text = _("{size} to send, {low} to {high}").format(
            size=gigabytes(document["missing_bytes"]), low=duration(known["low_s"]), high=duration(known["high_s"])
        )
        if not known["rate"]["measured"]:
            text += _(" (no rate was measured yet)")
        out.field(_("missing"), text, "warning")
    show_risk(document["at_risk"], out)


def show_risk(risk: dict[str, Any], out: Output) -> None:
    """What would be lost with this server."""
    if not risk["steps"]:
        if risk["step"]:
            out.field(_("at risk"), _("nothing: all steps are proved elsewhere"), "ok")
        return
    text = ngettext("{n} step", "{n} steps", risk["steps"]).format(n=number(risk["steps"]))
    if risk["seconds"]:
        text += f" ({duration(risk['seconds'])})"
    out.field(_("at risk"), _("{what} would be lost with this server").format(what=text), "warning")


def _named(name: str) -> str:
    return {"run": _("recipe, journal, data"), "final": _("final model")}.get(name, name)


def show_runs(rows: list[dict[str, Any]], wish: Control, out: Output) -> None:
    """All runs."""
    if not rows:
        out.line(_("there are no runs here"))
    cells = []
    for row in rows:
        if row.get("error"):
            cells.append([row["run"], "-", "-", "-", str(row["error"]["message"])])
            continue
        parts = [*row.get("others", []), *row["checkpoints"]]
        safe = sum(part["safe"] for part in parts if part["wanted"])
        wanted = sum(part["wanted"] for part in parts)
        trouble = next(
            (part["findings"][0]["detail"] for part in parts if part["state"] in BROKEN and part["findings"]), ""
        )
        risk = row["at_risk"]["steps"]
        cells.append(
            [
                row["run"],
                f"{safe}/{wanted}" if row["remote"] else "-",
                number(risk),
                row["remote"] or _("no remote"),
                trouble,
            ]
        )
    if cells:
        out.table([_("run"), _("safe"), _("steps at risk"), _("remote"), ""], cells, right=frozenset({1, 2}), kept=4)
    if wish.paused:
        out.line(_("backups are paused: `ftui backup go`"), "warning")
    if wish.limit:
        out.line(_("limited to {rate} a second").format(rate=gigabytes(wish.limit)))


def show_prune(document: dict[str, Any], out: Output) -> None:
    """What went, or would go."""
    out.field(
        _("keeps"),
        _("{what} and the run's own files, {size}").format(
            what=", ".join(document["kept"]), size=gigabytes(document["stays_bytes"])
        ),
    )
    folders: dict[str, int] = {}
    for path in document["goes"]:
        name = "/".join(path.split("/")[:2])
        folders[name] = folders.get(name, 0) + 1
    for name, count in folders.items():
        out.line(f"  {name}  " + ngettext("{n} file", "{n} files", count).format(n=number(count)))
    size = gigabytes(document["goes_bytes"])
    if document["removed"]:
        out.line(_("removed {size} from {remote}").format(size=size, remote=document["remote"]), "ok")
    elif document["goes"]:
        out.line(_("{size} would be removed; do it with --yes").format(size=size), "warning")
    else:
        out.line(_("there is nothing to remove"))


def show_restoring(plan: Plan, out: Output) -> None:
    """What a restore is about to fetch, before it begins."""
    steps = ", ".join(number(step) for step in plan.checkpoints) or _("none")
    text = _("{files} files, {size}; checkpoints: {steps}").format(
        files=number(len(plan.files)), size=gigabytes(plan.bytes), steps=steps
    )
    out.note(text)
    for name in plan.incomplete:
        out.note(_("{name} is not whole there and is left out").format(name=name), "warning")
    if base := plan.base.get("name"):
        revision = plan.base.get("revision")
        out.note(
            _("the base model is not in a backup: {name} must be here too").format(
                name=f"{base}@{revision}" if revision and not base.startswith("/") else base
            )
        )


def show_restored(document: dict[str, Any], out: Output) -> None:
    """What a restore did."""
    out.line(
        _("restored {size} to {path} in {time}, every file hashed").format(
            size=gigabytes(document["bytes"]), path=document["path"], time=duration(document["seconds"])
        ),
        "ok",
    )
    if document["run"] and document["checkpoints"]:
        out.line(_("go on with: ftui resume {path}").format(path=document["path"]))
