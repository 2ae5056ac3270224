"""`python -m engine.merge`: carries a plan out. The job comes as JSON on stdin, events go out as JSON lines."""

from __future__ import annotations

import errno
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from engine.merge.nf4 import QuantizedBase

EVERY = 0.5  # seconds between words about progress


def main() -> int:
    """Write the files, then check them; every outcome is an event."""
    out = sys.stdout
    sys.stdout = sys.stderr  # a library that prints must not spoil the stream of events
    job = json.loads(sys.stdin.read())
    from engine.merge.nf4 import CannotQuantize

    try:
        base = _base(job)
        _stream(job, base, out)
        _check(job, base, out)
    except CannotQuantize as error:
        _tell(out, event="error", kind="cannot_quantize", text=str(error))
        return 1
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        _tell(out, event="error", kind="disk_full" if full else "io", text=error.strerror or str(error))
        return 1
    return 0


def _tell(out: TextIO, **event: Any) -> None:
    out.write(json.dumps(event) + "\n")
    out.flush()


def _base(job: dict[str, Any]) -> QuantizedBase | None:
    """The quantized base, where the result shall be merged into that."""
    plan = job["plan"]
    if plan["quantized"] is None:
        return None
    from engine.merge.nf4 import QuantizedBase

    names = {tensor["name"] for shard in plan["shards"] for tensor in shard["tensors"]}
    return QuantizedBase(job["base"], plan["quantized"], names)


def _stream(job: dict[str, Any], base: QuantizedBase | None, out: TextIO) -> None:
    import torch

    from engine.merge.stream import Stream

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # blocks are small; handing each to several threads costs more than it brings
    last = time.monotonic()

    def say(done: int) -> None:
        nonlocal last
        if time.monotonic() - last >= EVERY:
            last = time.monotonic()
            _tell(out, event="progress", done=done)

    begin = time.monotonic()
    stream = Stream(Path(job["staging"]), say, base)
    stream.write(job["plan"]["shards"])
    torch.set_num_threads(threads)
    _tell(
        out,
        event="streamed",
        seconds=round(time.monotonic() - begin, 3),
        bytes=stream.done,
        peak_rss_bytes=_peak(),
        not_finite=stream.not_finite[:20],
        pairs=len(stream.pairs),
        zero_pairs=sum(not nonzero for nonzero in stream.pairs.values()),
    )


def _check(job: dict[str, Any], base: QuantizedBase | None, out: TextIO) -> None:
    from engine.merge import check, logits

    staging, plan = Path(job["staging"]), job["plan"]
    _tell(out, event="checked", **check.tensors(staging, plan["shards"], base))
    if not job["logits"]:
        return
    _tell(out, event="comparing")
    try:
        found = logits.compare(job["base"], job["adapter"], staging, plan, job["numbers"])
        _tell(out, event="logits", **found)
    except logits.Skipped as error:
        _tell(out, event="logits", skipped=str(error))


def _peak() -> int:
    """The most memory this process has held (VmHWM: ru_maxrss would count the parent's before the exec)."""
    with open("/proc/self/status", encoding="ascii") as file:
        for line in file:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
