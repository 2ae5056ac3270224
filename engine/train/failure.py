"""From an exception in a rank to logs/rank-N.error.json: one clear message and what to do; tracebacks go to the log."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Any

from engine.errors import FtuiError
from engine.files import write_json
from engine.text import _
from engine.train.rank import Rank

_MEMORY = ("out of memory", "can't allocate memory", "DefaultCPUAllocator", "CUBLAS_STATUS_ALLOC_FAILED")
_PEER = ("Connection closed by peer", "Connection reset by peer", "NCCL error", "ncclRemoteError", "Socket Timeout")


def explain(error: BaseException, step: int) -> FtuiError:
    """The error as a user should read it."""
    if isinstance(error, FtuiError):
        return error
    name = type(error).__name__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else name
    if isinstance(error, MemoryError) or name == "OutOfMemoryError" or any(part in str(error) for part in _MEMORY):
        return FtuiError(
            _("out of memory at step {step}: {reason}").format(step=step, reason=text[:200]),
            fix=_(
                "halve per_device_train_batch_size and double gradient_accumulation_steps, shorten max_length, "
                "or use method: qlora"
            ),
            kind="out_of_memory",
        )
    if name.startswith("Dist") or any(part in str(error) for part in _PEER):
        return FtuiError(
            _("another rank is gone: {reason}").format(reason=text[:200]),
            fix=_("look at the errors and logs of the other ranks"),
            kind="peer_lost",
        )
    if isinstance(error, OSError) and error.strerror:
        return FtuiError(
            error.strerror,
            where=str(error.filename) if error.filename else None,
            fix=_("check the disk and its permissions"),
            kind="disk",
        )
    last = lines[-1] if lines else ""
    return FtuiError(
        f"{name}: {last}"[:500] if last else name,
        fix=_("the traceback is in the rank's log: `ftui logs RUN --rank {n}`"),
        kind="crash",
    )


def record(rank: Rank, error: FtuiError, step: int) -> None:
    """Write the error file of this rank."""
    document: dict[str, Any] = {
        "format": 1,
        "attempt": rank.attempt,
        "time": time.time(),
        "rank": rank.index,
        "step": step,
        **error.to_json(),
    }
    with contextlib.suppress(OSError):  # a full disk: the log says it, too
        write_json(rank.error_file, document)
    print(f"{error.kind}: {error.what}", file=sys.stderr, flush=True)  # noqa: T201 - the rank's log
