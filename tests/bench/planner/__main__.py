"""The planner against measured runs: `python tests/bench/planner ROWS.jsonl [--markdown] [--cross-validate]`.

ROWS has one planner request a line with what was measured (`measured_gb`, `measured_kind`, `tokens_per_s`, `run`,
`source`). Prints one JSON line for each figure: errors by kind and method beside those of a provider's rule of thumb,
the coverage of the stated band, verdicts, tokens/s, the time of a plan and of the command. `--markdown` prints the
errors alone, as the table of docs/planner.md. `--cross-validate` fits the few coefficients again without one part of
the rows at a time and measures on that part.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from engine.plan import device, request, speed
from engine.plan.plan import RULE, plan

FIELD = {"allocated": "allocated_gb", "reserved": "reserved_gb", "nvidia_smi": "device_gb"}
DEVICE_COEFFICIENTS = ("CONTEXT", "NCCL", "SPLIT", "SPLIT_FSDP", "POOLS_FSDP", "LOADED")
SPEED_COEFFICIENTS = ("EFFICIENCY", "BANDWIDTH")
METHODS = ("full", "lora", "qlora", "all")
Row = dict[str, Any]


def quantile(values: Iterable[float], share: float) -> float:
    """A quantile of absolute errors."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def result(row: Row) -> dict[str, Any]:
    """The planner's answer to a row."""
    return plan(request.parse(row), advise=False).to_json()


def errors(rows: list[Row], kinds: tuple[str, ...]) -> list[tuple[Row, float]]:
    """Relative errors of the rows of some kinds."""
    found = []
    for row in rows:
        if row["measured_kind"] in kinds:
            found.append((row, result(row)["per_gpu"][FIELD[row["measured_kind"]]] / row["measured_gb"] - 1))
    return found


def rule_error(row: Row) -> float:
    """The error of the provider's rule, shared evenly by the GPUs."""
    shape = request.parse(row).shape
    return RULE[row["method"]] * shape.parameters / 1e9 / row["num_gpus"] / row["measured_gb"] - 1


def out(figure: str, **values: Any) -> None:
    """One figure."""
    rounded = {k: round(v, 4) if isinstance(v, float) else v for k, v in values.items()}
    print(json.dumps({"figure": figure} | rounded))


def memory_table(rows: list[Row]) -> list[dict[str, Any]]:
    """Errors by kind and method, the rule of thumb beside them."""
    lines = []
    for name, kinds in (("allocated", ("allocated",)), ("device", ("reserved", "nvidia_smi"))):
        table: dict[str, list[tuple[Row, float]]] = defaultdict(list)
        for row, error in errors(rows, kinds):
            table[row["method"]].append((row, error))
            table["all"].append((row, error))
        for method, found in sorted(table.items(), key=lambda item: METHODS.index(item[0])):
            absolute = [abs(e) for _row, e in found]
            rule = quantile((abs(rule_error(row)) for row, _e in found), 0.5)
            lines.append({
                "figure": f"{name} {method}", "rows": len(found), "median": quantile(absolute, 0.5),
                "p90": quantile(absolute, 0.9), "worst": max(absolute), "rule_of_thumb_median": rule,
                "ratio_to_rule": quantile(absolute, 0.5) / rule,
            })  # fmt: skip
    return lines


def markdown(rows: list[Row]) -> None:
    """The table of docs/planner.md."""
    names = {"allocated": "allocated", "device": "reserved or nvidia-smi"}
    print("| | rows | median | 90 % within | worst | a provider's GB-per-billion rule, median |")
    print("|---|---|---|---|---|---|")
    for line in memory_table(rows):
        kind, method = line["figure"].split()
        cells = [f"{100 * line[key]:.1f} %" for key in ("median", "p90", "worst")]
        cells.append(f"{100 * line['rule_of_thumb_median']:.0f} %")
        print(f"| {names[kind]}, {method} | {line['rows']} | {' | '.join(cells)} |")
    speeds = [abs(e) for e in speed_errors(rows)]
    shares = (f"{100 * value:.0f} %" for value in (quantile(speeds, 0.5), quantile(speeds, 0.9), max(speeds)))
    print(f"| tokens/s | {len(speeds)} runs | {' | '.join(shares)} | |")


def band_and_verdicts(rows: list[Row]) -> None:
    """Does the band hold what was measured; are the verdicts right."""
    inside = total = wrong = asked = 0
    for row in rows:
        answer = result(row)
        if row["measured_kind"] == "allocated":
            total += 1
            inside += answer["per_gpu"]["low_gb"] <= row["measured_gb"] <= answer["per_gpu"]["high_gb"]
        elif row["measured_kind"] in ("oom", "fits"):
            asked += 1
            wrong += answer["verdict"] == {"oom": "fits", "fits": "no"}[row["measured_kind"]]
    out("band", rows=total, inside=inside / total if total else None)
    out("verdicts", rows=asked, wrong=wrong)


def speed_errors(rows: list[Row]) -> list[float]:
    """Errors of tokens a second, each run once."""
    seen, found = set(), []
    for row in rows:
        if row.get("tokens_per_s") and row["run"] not in seen:
            seen.add(row["run"])
            found.append(result(row)["time"]["tokens_per_s"] / row["tokens_per_s"] - 1)
    return found


def loss_device(rows: list[Row]) -> float:
    """What the fit of the allocator's coefficients makes small."""
    return sum(abs(e) for _row, e in errors(rows, ("reserved", "nvidia_smi")))


def loss_speed(rows: list[Row]) -> float:
    """What the fit of the speed's coefficients makes small."""
    return sum(abs(e) for e in speed_errors(rows))


def fit(module: Any, names: tuple[str, ...], loss: Callable[[list[Row]], float], rows: list[Row]) -> dict[str, float]:
    """Coordinate descent from half of the present values: none of them may stay by inertia."""
    for name in names:
        setattr(module, name, getattr(module, name) * 0.5)
    for factors in ((0.5, 0.75, 1.3, 2.0), (0.8, 0.9, 1.1, 1.25), (0.95, 1.05), (0.98, 1.02)):
        for _round in range(2):
            for name in names:
                start = getattr(module, name)
                tried = {}
                for factor in (1.0, *factors):
                    setattr(module, name, start * factor)
                    tried[start * factor] = loss(rows)
                setattr(module, name, min(tried, key=lambda value: tried[value]))
    return {name: getattr(module, name) for name in names}


def folds(rows: list[Row], key: Callable[[Row], str], number: int) -> list[list[Row]]:
    """Rows in `number` parts, those of one group together."""
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    parts: list[list[Row]] = [[] for _ in range(min(number, len(groups)))]
    for index, name in enumerate(sorted(groups)):
        parts[index % len(parts)].extend(groups[name])
    return parts


def base_run(row: Row) -> str:
    """A run without its batch size: neighbours of one curve must not be split."""
    return row["run"].removesuffix("-smi").rsplit("-b", 1)[0]


def cross_validate(rows: list[Row]) -> None:
    """Errors on what the coefficients were not fitted on."""
    jobs = (
        (
            "device",
            device,
            DEVICE_COEFFICIENTS,
            loss_device,
            lambda r: r["measured_kind"] in ("reserved", "nvidia_smi"),
        ),
        ("speed", speed, SPEED_COEFFICIENTS, loss_speed, lambda r: bool(r.get("tokens_per_s"))),
    )
    for name, module, names, loss, wanted in jobs:
        chosen = [row for row in rows if wanted(row)]
        kept = {n: getattr(module, n) for n in names}
        for by, key in (("run", base_run), ("model", lambda r: r["model"]), ("source", lambda r: r["source"])):
            held: list[float] = []
            for part in folds(chosen, key, 5):
                rest = [row for row in chosen if row not in part]
                fit(module, names, loss, rest)
                held += (
                    [abs(e) for _row, e in errors(part, ("reserved", "nvidia_smi"))]
                    if name == "device"
                    else [abs(e) for e in speed_errors(part)]
                )
                for n, value in kept.items():
                    setattr(module, n, value)
            out(f"{name} held out by {by}", rows=len(held), median=quantile(held, 0.5), p90=quantile(held, 0.9))


def times(path: Path, rows: list[Row]) -> None:
    """How long a plan and the command take; the command beside a bare start of Python."""
    requests = [request.parse(row) for row in rows]
    for advise in (False, True):
        start = time.perf_counter()
        for r in requests:
            plan(r, advise=advise)
        out("ms a plan" + (" with advice" if advise else ""), ms=(time.perf_counter() - start) / len(requests) * 1e3)

    def best(*argv: str) -> float:
        taken = []
        for _ in range(3):
            start = time.perf_counter()
            subprocess.run([sys.executable, *argv], capture_output=True, check=False)
            taken.append(time.perf_counter() - start)
        return min(taken)

    bare = best("-c", "pass")
    one = best("-m", "tui", "plan", "--model", "Llama-3.1-8B", "--method", "lora", "--server", "8xH100")
    every = best("-m", "tui", "plan", "--all", "--model", "Llama-3.1-8B")
    out("s of `ftui plan`", s=one, ratio_to_bare_python=one / bare)
    out("s of `ftui plan --all`", s=every, ratio_to_bare_python=every / bare)
    out("s of `ftui plan --from` (with advice)", rows=len(rows), s=best("-m", "tui", "plan", "--from", str(path)))


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--cross-validate", action="store_true")
    args = parser.parse_args()
    rows = [json.loads(line) for line in args.rows.read_text().splitlines() if line.strip()]
    if args.markdown:
        markdown(rows)
        return
    for line in memory_table(rows):
        out(**line)
    band_and_verdicts(rows)
    speeds = [abs(e) for e in speed_errors(rows)]
    out("tokens/s", rows=len(speeds), median=quantile(speeds, 0.5), p90=quantile(speeds, 0.9))
    times(args.rows, rows)
    if args.cross_validate:
        cross_validate(rows)


if __name__ == "__main__":
    main()
