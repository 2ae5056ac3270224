"""How fast any row of a large file is shown: making the index, and a row after it.

    python tests/bench/bench_index.py [GIGABYTES]

One JSON line per figure. The alternative that the index is compared with is reading the same bytes and nothing else.
"""

from __future__ import annotations

import json
import random
import resource
import sys
import tempfile
import time
from pathlib import Path

from engine.data import index
from tests.bench import bench_data

PIECE = 1 << 22


def main(gigabytes: float) -> None:
    """Write a file, index it, show rows of it."""
    rng = random.Random(5)
    words, weights = bench_data.vocabulary()
    some = "".join(bench_data.line(bench_data.conversation(rng, words, weights, 36)) for _ in range(5000)).encode()
    with tempfile.TemporaryDirectory() as folder:
        path, cache = Path(folder) / "train.jsonl", Path(folder) / "cache"
        with open(path, "wb") as file:
            for _ in range(max(1, round(gigabytes * 1e9 / len(some)))):
                file.write(some)
        size = path.stat().st_size
        start = time.process_time()
        with open(path, "rb") as file:
            while file.read(PIECE):
                pass
        reading = time.process_time() - start
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        wall, start = time.perf_counter(), time.process_time()
        rows = index.build(path, cache)
        seconds, wall = time.process_time() - start, time.perf_counter() - wall
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        times = []
        for _ in range(200):
            begin = time.perf_counter()
            rows.row(rng.randrange(len(rows)))
            times.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        again = index.build(path, cache)
        figure = {
            "gigabytes": round(size / 1e9, 2),
            "rows": len(rows),
            "index_mb_per_cpu_second": round(size / 1e6 / seconds),
            "index_wall_s": round(wall, 2),
            "times_reading": round(seconds / max(reading, 1e-9), 1),
            "memory_grew_mb": round(grown / 1e3, 1),
            "row_ms_median": round(1e3 * sorted(times)[100], 2),
            "row_ms_worst_of_200": round(1e3 * max(times), 1),
            "opened_from_the_cache_ms": round(1e3 * (time.perf_counter() - begin), 1),
        }
        assert len(again) == len(rows)
        print(json.dumps(figure))


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 2.0)
