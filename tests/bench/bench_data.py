"""How fast `ftui data check` is, how much memory it takes, and what share of planted flaws it finds.

    python tests/bench/bench_data.py speed [ROWS ...]     time, memory and growth at several sizes
    python tests/bench/bench_data.py planted [ROWS]       recall and precision of near duplicates and personal data

One JSON line per figure. The alternative that speed is compared with is reading each row with the standard library.
"""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from stdnum.tr import tckimlik

from engine.data import identifiers

SYSTEM = "You are a careful assistant of a shop. Answer briefly and in the customer's language."


def vocabulary(seed: int = 1, size: int = 20_000) -> tuple[list[str], list[float]]:
    """Made-up words with the frequencies of a natural language."""
    rng = random.Random(seed)
    parts = [c + v for c in "bcdfghklmnprstvw" for v in "aeiou"]
    words = sorted({"".join(rng.choices(parts, k=rng.randint(1, 4))) for _ in range(size)})
    rng.shuffle(words)
    return words, [1 / (rank + 10) for rank in range(len(words))]


def conversation(rng: random.Random, words: list[str], weights: list[float], mean: int) -> list[str]:
    """The turns of a conversation, the user first."""
    count = 2 * rng.randint(1, 3)
    return [" ".join(rng.choices(words, weights, k=max(4, int(rng.gauss(mean, mean / 3))))) for _ in range(count)]


def line(turns: list[str]) -> str:
    """A row of messages."""
    messages = [{"role": "system", "content": SYSTEM}]
    messages += [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(turns)]
    return json.dumps({"messages": messages}, ensure_ascii=False) + "\n"


def edited(rng: random.Random, turns: list[str], words: list[str], share: float) -> list[str]:
    """The turns with a share of all words replaced, left out or doubled."""
    result = []
    for turn in turns:
        out: list[str] = []
        for word in turn.split():
            if rng.random() >= share:
                out.append(word)
            elif (kind := rng.random()) < 0.7:
                out.append(rng.choice(words))
            elif kind < 0.85:
                out += [word, rng.choice(words)]
        result.append(" ".join(out) or "so")
    return result


def write(path: Path, rows: int) -> None:
    """About a kilobyte a row, one in a hundred a near duplicate of an earlier one."""
    rng = random.Random(7)
    words, weights = vocabulary()
    pool = [conversation(rng, words, weights, 36) for _ in range(min(rows, 5000))]
    with open(path, "w", encoding="utf-8") as file:
        for at in range(rows):
            if at < len(pool):
                turns = pool[at]
            elif rng.random() < 0.01:
                turns = edited(rng, rng.choice(pool), words, 0.1)
            else:  # cheap to make, new to the reader: words of old rows in a new order
                turns = [" ".join(rng.sample(turn.split(), k=len(turn.split()))) for turn in rng.choice(pool)]
                turns = edited(rng, turns, words, 0.5)
            file.write(line(turns))


def speed(sizes: list[int]) -> None:
    """Time and peak memory of the whole command."""
    for rows in sizes:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "train.jsonl"
            write(path, rows)
            size = path.stat().st_size
            start = time.perf_counter()
            with open(path, encoding="utf-8") as file:
                for text in file:
                    json.loads(text)
            plain = time.perf_counter() - start
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            start = time.perf_counter()
            command = [sys.executable, "-m", "tui", "data", "check", str(path), "--json"]
            done = subprocess.run(command, capture_output=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"})
            seconds = time.perf_counter() - start
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            report = json.loads(done.stdout)
            near = sum(f["count"] for f in report["findings"] if f["kind"] == "near_duplicate")
            figure = {
                "rows": rows,
                "megabytes": round(size / 1e6),
                "seconds": round(seconds, 1),
                "cpu_seconds": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
                "times_json_loads": round(seconds / plain, 1),
                "peak_mb_of_the_largest_process": round(after.ru_maxrss / 1e3),
                "near_duplicates": near,
            }
            print(json.dumps(figure), flush=True)


def _luhn(rng: random.Random) -> str:
    digits = "4" + "".join(rng.choices("0123456789", k=14))
    return next(digits + last for last in "0123456789" if identifiers.luhn_is_valid(digits + last))


def _snils(rng: random.Random) -> str:
    while True:
        digits = "".join(rng.choices("123456789", k=9))
        total = sum(int(d) * w for d, w in zip(digits, range(9, 0, -1), strict=True)) % 101 % 100
        if identifiers.snils_is_valid(f"{digits}{total:02d}"):
            return f"{digits[:3]}-{digits[3:6]}-{digits[6:]} {total:02d}"


def _tckn(rng: random.Random) -> str:
    digits = str(rng.randint(1, 9)) + "".join(rng.choices("0123456789", k=8))
    return digits + tckimlik.calc_check_digits(digits)


def _digits(rng: random.Random, count: int) -> str:
    return "".join(rng.choices("0123456789", k=count))


PLANTS = {
    "email": lambda r: f"{r.choice(['ann', 'oleg.k', 'm_y'])}{r.randint(1, 999)}@mail.{r.choice(['org', 'ru'])}",
    "phone_ru": lambda r: r.choice(["+7 9{} {}-{}-{}", "8 (9{}) {}-{}-{}", "+79{}{}{}{}"]).format(
        _digits(r, 2), _digits(r, 3), _digits(r, 2), _digits(r, 2)
    ),
    "phone_tr": lambda r: r.choice(["+90 5{} {} {} {}", "05{} {} {} {}"]).format(
        f"3{r.randint(0, 9)}", _digits(r, 3), _digits(r, 2), _digits(r, 2)
    ),
    "phone_us": lambda r: r.choice(["({}) {}-{}", "+1 {} {} {}", "{}-{}-{}"]).format(
        r.choice(["212", "415", "305"]), f"{r.randint(2, 9)}{_digits(r, 2)}", _digits(r, 4)
    ),
    "credit_card": lambda r: (lambda n: r.choice([n, " ".join(n[i : i + 4] for i in range(0, 16, 4))]))(_luhn(r)),
    "snils_ru": _snils,
    "tckn_tr": _tckn,
    "ssn_us": lambda r: f"{r.randint(100, 665)}-{r.randint(10, 99)}-{r.randint(1000, 9999)}",
    "ip": lambda r: f"{r.choice([203, 185, 91])}.{r.randint(0, 255)}.{r.randint(0, 255)}.{r.randint(1, 254)}",
}  # fmt: skip
CLEAN_NUMBERS = (
    lambda r: f"order {_digits(r, 8)}",
    lambda r: f"on 20{r.randint(10, 29)}-{r.randint(10, 12)}-{r.randint(10, 28)} at 10:{r.randint(10, 59)}",
    lambda r: f"version {r.randint(1, 9)}.{r.randint(0, 20)}.{r.randint(0, 9)}",
    lambda r: f"costs {r.randint(1, 9)},{_digits(r, 3)}.{_digits(r, 2)} euros",
    lambda r: f"id {r.getrandbits(64):016x}",
    lambda r: f"timestamp {r.randint(1_500_000_000, 1_800_000_000)}",
    lambda r: f"tracking {_digits(r, 14)}",
)


def planted(rows: int) -> None:
    """Recall and precision on what was planted."""
    from engine.data.check import check

    rng = random.Random(11)
    words, weights = vocabulary()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "near.jsonl"
        base = [conversation(rng, words, weights, 40) for _ in range(rows)]
        copies = [edited(rng, rng.choice(base), words, rng.uniform(0.05, 0.15)) for _ in range(rows // 10)]
        path.write_text("".join(line(turns) for turns in base + copies), encoding="utf-8")
        report = check([str(path)], workers=2)
        found = next((f for f in report.findings if f.kind == "near_duplicate"), None)
        first = [number for number in (found.lines if found else []) if number <= rows]
        count = found.count if found else 0
        figure = {"near_duplicates_planted": len(copies), "found": count, "false_ones_in_the_first_20": len(first)}
        print(json.dumps(figure))
        _personal(rng, words, weights, Path(folder), rows)


def _personal(rng: random.Random, words: list[str], weights: list[float], folder: Path, rows: int) -> None:
    from engine.data import privacy

    for kind, make in PLANTS.items():
        hits = 0
        for _ in range(1000):
            turns = conversation(rng, words, weights, 12)
            value = make(rng)
            text = f"{turns[0]} {value} {turns[1]}"
            hits += any(text[start:end] == value for _kind, _sub, start, end in privacy.find(text))
        print(json.dumps({"personal_data": kind, "recall": hits / 1000}))
    alarms = 0
    for _ in range(rows):
        turns = conversation(rng, words, weights, 20)
        text = f"{turns[0]} {rng.choice(CLEAN_NUMBERS)(rng)} {turns[1]}"
        alarms += bool(privacy.find(text))
    print(json.dumps({"false_alarms_per_1000_clean_rows": 1000 * alarms / rows}))


if __name__ == "__main__":
    what, *numbers = sys.argv[1:] or ["speed"]
    if what == "speed":
        speed([int(n) for n in numbers] or [50_000, 200_000, 800_000])
    else:
        planted(int(numbers[0]) if numbers else 20_000)
