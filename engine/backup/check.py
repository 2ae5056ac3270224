"""`ftui backup verify`: is everything that the ledger calls ours still there, and right?"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from engine.backup import items, verify
from engine.backup.jobs import remote_path
from engine.backup.ledger import Ledger
from engine.backup.policy import Policy
from engine.backup.rclone import RcloneError
from engine.backup.remote import Remote
from engine.text import _, ngettext
from engine.workspace import RunFolder

WORKERS = 8


def check(
    run: RunFolder,
    policy: Policy,
    remote: Remote,
    ledger: Ledger,
    *,
    full: bool = False,
    tick: Callable[[int, int], None] | None = None,
) -> tuple[dict[str, list[dict[str, Any]]], list[str]]:
    """Prove every object that is known to be there; findings by item, and wanted items that are not there.

    What is missing or wrong is noted in the ledger, so that it is sent again.

    Raises:
        RcloneError: the server does not answer.
    """
    wanted = {item.name: item for item in items.wanted(run, policy, ledger)}
    there = remote.listing()
    known = list(ledger.known())
    findings: dict[str, list[dict[str, Any]]] = {}
    todo = []
    for name, path, record in known:
        if remote_path(name, path) not in there:
            ledger.lost(name, path, "missing")
            findings.setdefault(name, []).append(_finding("missing", path, _("it is not there")))
        else:
            todo.append((name, path, record))
    level = "full" if full or policy.verify == "full" else "etag"
    with ThreadPoolExecutor(WORKERS, "verify") as pool:
        futures = {}
        for name, path, record in todo:
            source = wanted[name].files.get(path) if name in wanted else None
            local = source.path if source else None
            futures[pool.submit(verify.check, remote, remote_path(name, path), record, local, level=level)] = (
                name,
                path,
            )
        try:
            for done, future in enumerate(as_completed(futures), 1):
                name, path = futures[future]
                result = future.result()
                if result.answer == "ok":
                    ledger.verified(name, path, result.how)
                else:
                    ledger.lost(name, path, result.answer)
                    text = _("it is not there") if result.answer == "missing" else _("its content is not what was sent")
                    findings.setdefault(name, []).append(_finding(result.answer, path, text, result.how))
                if tick:
                    tick(done, len(futures))
        except RcloneError:
            pool.shutdown(cancel_futures=True)
            raise
    for name in {name for name, _path, _record in known}:
        if bad := findings.get(name):
            text = ngettext("{n} file is missing or wrong there", "{n} files are missing or wrong there", len(bad))
            ledger.side(name, "FAILED", text.format(n=len(bad)))
        elif ledger.item(name).side == "FAILED":
            ledger.side(name, None)
    absent = [name for name in wanted if not ledger.item(name).proved(policy.verify) and name not in findings]
    return findings, absent


def _finding(kind: str, path: str, detail: str, how: str = "list") -> dict[str, Any]:
    return {"kind": f"backup_{kind}", "level": "error", "file": path, "detail": detail, "found_by": how}
