"""What is where, as a document: for the command line, the screens, the lease, and `ftui status`."""

from __future__ import annotations

from typing import Any

from engine.backup import forecast, items, progress
from engine.backup.items import Item
from engine.backup.ledger import Ledger
from engine.backup.policy import Policy, of_run
from engine.workspace import RunFolder, Workspace


def policy_of(run: RunFolder, remote: str | None = None) -> Policy | None:
    """A run's policy, with another remote where one is given; None: it has none.

    Raises:
        UsageError: the recipe's `backup`, the setting or the remote is wrong.
    """
    from dataclasses import replace

    from engine.backup.policy import check_remote

    known = of_run(run.read_resolved())
    if remote is None:
        return known
    text = check_remote(remote, "--remote")
    return replace(known, remote=text) if known else Policy(text)


def effective(run: RunFolder, remote: str | None = None) -> Policy | None:
    """The policy to judge a run by: its own, or else the remote that it was last backed up to by hand.

    Raises:
        UsageError: see `policy_of`.
    """
    if remote is not None or policy_of(run) is not None:
        return policy_of(run, remote)
    last = remotes_of(run)
    return Policy(last[0]) if last else None


def remotes_of(run: RunFolder) -> list[str]:
    """The remotes that a run was ever backed up to, the latest first: each has a ledger."""
    from engine import journal

    found = []
    for path in (run.path / "backup").glob("*.jsonl"):
        first = next(iter(journal.JournalReader(path).poll(1)), {})
        if first.get("event") == "remote" and isinstance(first.get("remote"), str):
            found.append((path.stat().st_mtime, first["remote"]))
    return [remote for _time, remote in sorted(found, reverse=True)]


def of(workspace: Workspace, run: RunFolder, policy: Policy | None) -> dict[str, Any]:
    """The state of one run's backup at one remote, from the files here alone; nothing is asked of the remote."""
    running = progress.read(run.path / "backup")
    if policy is None:
        return {
            "run": run.name,
            "remote": None,
            "checkpoints": [],
            "others": [],
            "missing_bytes": 0,
            "forecast": None,
            "progress": running,
            "at_risk": at_risk(run, None),
        }
    ledger = Ledger(run.path / "backup", policy.remote)
    wanted = items.wanted(run, policy, ledger)
    names = {item.name: item for item in wanted}
    rows = [_row(item.name, ledger, item) for item in wanted]
    rows += [_row(name, ledger, None) for name in ledger.items if name not in names and not ledger.items[name].gone]
    steps = [row for row in rows if row["step"] is not None]
    return {
        "run": run.name,
        "remote": policy.to(run.name),
        "keep": list(policy.keep),
        "verify": policy.verify,
        "checkpoints": sorted(steps, key=lambda row: (row["step"], row["name"])),
        "others": [row for row in rows if row["step"] is None],
        "missing_bytes": sum(_missing(ledger, item)[0] for item in wanted),
        "forecast": need(workspace, run, policy, ledger, wanted).to_json(),
        "progress": running,
        "at_risk": at_risk(run, policy, ledger),
    }


def _row(name: str, ledger: Ledger, item: Item | None) -> dict[str, Any]:
    record = ledger.item(name)
    number = name.rpartition("checkpoint-")[2] if "/checkpoint-" in name else ""
    files = len(item.files) if item else max(0, len(record.files) - 1)
    size = item.bytes if item else sum(file.size for file in record.files.values())
    level = "error" if record.side in ("FAILED", "SOURCE_CHANGED", "AUTH_NEEDED") else "warning"
    findings = []
    if record.side:
        findings.append({"kind": record.side.lower(), "level": level, "detail": record.reason or ""})
    return {
        "name": name,
        "step": int(number) if number.isdigit() else None,
        "state": record.state,
        "progress": record.progress,
        "safe": record.safe,
        "wanted": item is not None,
        "files": files,
        "bytes": size,
        "bytes_there": sum(file.size for file in record.files.values() if file.uploaded),
        "verified_at": record.verified_at,
        "findings": findings,
    }


def _missing(ledger: Ledger, item: Item) -> tuple[int, int, int]:
    """Of an item: bytes to send, files to send, bytes to read first."""
    record = ledger.item(item.name)
    size = count = unread = 0
    for name, source in item.files.items():
        known = record.files.get(name)
        if known is None or not known.uploaded:
            size, count = size + source.size, count + 1
            unread += source.size if known is None else 0
    return size, count + (record.committed is None), unread


def need(
    workspace: Workspace,
    run: RunFolder,
    policy: Policy,
    ledger: Ledger | None = None,
    wanted: list[Item] | None = None,
) -> forecast.Forecast:
    """How long until everything that the policy wants of a run is proved at its remote."""
    ledger = ledger or Ledger(run.path / "backup", policy.remote)
    wanted = items.wanted(run, policy, ledger) if wanted is None else wanted
    sums = [sum(column) for column in zip(*(_missing(ledger, item) for item in wanted), strict=True)] or [0, 0, 0]
    unproved = sum(not ledger.item(item.name).proved(policy.verify) and len(item.files) for item in wanted)
    running = progress.read(run.path / "backup")
    band = forecast.measured(workspace, policy.remote)
    if running and running.get("remote") == policy.remote and running.get("rate"):
        band = forecast.Band(**running["rate"])
        sums[0] = max(0, min(sums[0], running["bytes_total"] - running["bytes_done"]))
    return forecast.forecast(
        sums[0],
        max(sums[1], unproved),
        band,
        unhashed=sums[2],
        full=policy.verify == "full",
        in_flight=min(sums[0], 1 << 30),
    )


def safe_steps(run: RunFolder, policy: Policy, ledger: Ledger | None = None) -> list[int]:
    """The steps of the checkpoints that are proved at the remote and from which a run can go on, in rising order."""
    ledger = ledger or Ledger(run.path / "backup", policy.remote)
    return sorted(
        int(name.rpartition("checkpoint-")[2])
        for name, record in ledger.items.items()
        if name.startswith("checkpoints/checkpoint-") and record.proved(policy.verify)
    )


def at_risk(run: RunFolder, policy: Policy | None, ledger: Ledger | None = None) -> dict[str, Any]:
    """What would be lost if the machine vanished now: steps since the last checkpoint proved elsewhere, and their time.

    Without a remote everything is only here. A run whose final model is proved elsewhere has nothing to lose. `step` is
    the last safe one; `seconds` is null where the time is not known.
    """
    state = run.read_state()
    step = int(state.get("step") or 0)
    if policy is None:
        return {"steps": step, "seconds": _trained_s(run, None, state), "step": None, "money": None}
    ledger = ledger or Ledger(run.path / "backup", policy.remote)
    if state.get("state") == "done" and ledger.item("final").proved(policy.verify):
        return {"steps": 0, "seconds": 0.0, "step": step, "money": None}
    safe = [number for number in safe_steps(run, policy, ledger) if number <= step]
    if not safe:
        return {"steps": step, "seconds": _trained_s(run, None, state), "step": None, "money": None}
    return {"steps": step - safe[-1], "seconds": _trained_s(run, safe[-1], state), "step": safe[-1], "money": None}


def _trained_s(run: RunFolder, since: int | None, state: dict[str, Any]) -> float | None:
    """How long the steps after `since` were trained: from the journal's steps of its end, else null."""
    from engine import journal

    step = int(state.get("step") or 0)
    if since is not None and step <= since:
        return 0.0
    reader = journal.JournalReader(run.journal)
    try:
        reader.offset = max(0, run.journal.stat().st_size - 4 * journal.CHUNK)
    except OSError:
        return None
    times = [
        float(event["step_time_s"])
        for event in reader.all()
        if event.get("event") == "log" and isinstance(event.get("step_time_s"), int | float)
    ]
    if not times:
        return None
    return (step - (since or 0)) * sum(times) / len(times)
