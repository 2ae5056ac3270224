"""From an exception in a rank to logs/rank-N.error.json: one clear message and what to do; tracebacks go to the log."""

from __future__ import annotations

import contextlib
import errno
import resource
import sys
import time
from typing import Any

from engine.errors import FtuiError
from engine.files import write_json
from engine.text import _
from engine.train.rank import Rank

_MEMORY = ("out of memory", "can't allocate memory", "DefaultCPUAllocator", "CUBLAS_STATUS_ALLOC_FAILED")
_TIMEOUT = ("Timed out waiting", "collective operation timeout", "Socket Timeout", "wait timeout after")
_PEER = ("Connection closed by peer", "Connection reset by peer", "NCCL error", "ncclRemoteError")
_FULL = ("No space left", "StorageFull", "Disk quota exceeded", "PytorchStreamWriter failed", "unexpected pos")
_HUB = ("LocalEntryNotFoundError", "OfflineModeIsEnabled", "GatedRepoError", "RepositoryNotFoundError")
# Which part of a step a function of the traceback belongs to; the innermost one that is known counts.
_PHASES = {
    "backward": "backward",
    "evaluate": "evaluate",
    "evaluation_loop": "evaluate",
    "prediction_step": "evaluate",
    "compute_loss": "forward",
    "load_model": "load",
    "from_pretrained": "load",
    "_build": "load",
    "save": "save",
    "write_final": "save",
}


def explain(error: BaseException, step: int) -> FtuiError:
    """The error as a user should read it."""
    if isinstance(error, FtuiError):
        return error
    name, said = type(error).__name__, str(error)
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    text = lines[0] if lines else name
    if isinstance(error, MemoryError) or name == "OutOfMemoryError" or _has(said, _MEMORY):
        return FtuiError(
            _("out of memory at step {step}: {reason}").format(step=step, reason=text[:200]),
            fix=_(
                "halve per_device_train_batch_size and double gradient_accumulation_steps, shorten max_length, "
                "or use method: qlora"
            ),
            kind="out_of_memory",
        )
    if _has(said, _TIMEOUT):
        return FtuiError(
            _("the ranks waited for each other in vain: {reason}").format(reason=text[:200]),
            fix=_("look at the logs of the other ranks: one hangs or died"),
            kind="collective_timeout",
        )
    if name.startswith("Dist") or _has(said, _PEER):
        return FtuiError(
            _("another rank is gone: {reason}").format(reason=text[:200]),
            fix=_("look at the errors and logs of the other ranks"),
            kind="peer_lost",
        )
    if (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)) or _has(said, _FULL):
        return FtuiError(
            _("the disk is full: {reason}").format(reason=text[:200]),
            where=_place(error),
            fix=_("free space there, then resume the run"),
            kind="disk_full",
        )
    if name in _HUB or (isinstance(error, OSError) and "couldn't connect to" in said):
        return FtuiError(
            _("the model or the data cannot be fetched: {reason}").format(reason=text[:200]),
            fix=_("`ftui doctor` says whether the hub is reached; a folder on this server needs no hub"),
            kind="hub",
        )
    if type(error).__module__.startswith("jinja2"):
        return FtuiError(
            _("the chat template: {reason}").format(reason=text[:300]),
            where=f"line {line}" if isinstance(line := getattr(error, "lineno", None), int) else None,
            fix=_("correct it, or set chat_template_path to another one"),
            kind="template",
        )
    if isinstance(error, OSError) and error.strerror:
        return FtuiError(error.strerror, where=_place(error), fix=_("check the disk and its permissions"), kind="disk")
    last = lines[-1] if lines else ""
    kind = "versions" if isinstance(error, ImportError) else "crash"
    return FtuiError(
        f"{name}: {last}"[:500] if last else name,
        fix=_("the traceback is in the rank's log: `ftui logs RUN --rank {n}`"),
        kind=kind,
    )


def _has(said: str, parts: tuple[str, ...]) -> bool:
    return any(part in said for part in parts)


def _place(error: BaseException) -> str | None:
    name = getattr(error, "filename", None)
    return str(name) if name else None


def phase_of(error: BaseException) -> str | None:
    """What was being done, by the functions of the traceback: `load`, `forward`, `backward`, `optimizer`, …"""
    found, frame = None, error.__traceback__
    while frame is not None:
        code = frame.tb_frame.f_code
        if code.co_name == "step" and "optim" in code.co_filename:
            found = "optimizer"
        elif found != "evaluate":  # an evaluation has a forward pass, too
            found = _PHASES.get(code.co_name, found)
        frame = frame.tb_next
    return found


def memory_held() -> dict[str, int] | None:
    """What the allocator held, in bytes: on a GPU as torch counts it, else the process as the kernel does."""
    torch = sys.modules.get("torch")
    with contextlib.suppress(Exception):  # a device that is gone cannot be asked
        if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
            free, total = torch.cuda.mem_get_info()
            allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
            print(torch.cuda.memory_summary(), file=sys.stderr, flush=True)  # noqa: T201 - the rank's log
            return {
                "allocated": allocated,
                "peak": torch.cuda.max_memory_allocated(),
                "reserved_unused": reserved - allocated,
                "free": free,
                "total": total,
            }
    held = {"resident": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return held if limit == resource.RLIM_INFINITY else {**held, "limit": limit}


def record(rank: Rank, error: FtuiError, step: int, cause: BaseException | None = None) -> None:
    """Write the error file of this rank; `cause` is the exception that the error explains."""
    document: dict[str, Any] = {
        "format": 1,
        "attempt": rank.attempt,
        "time": time.time(),
        "rank": rank.index,
        "step": step,
        "phase": phase_of(cause) if cause is not None else None,
        "memory": memory_held() if error.kind == "out_of_memory" else None,
        **error.to_json(),
    }
    with contextlib.suppress(OSError):  # a full disk: the log says it, too
        write_json(rank.error_file, document)
    print(f"{error.kind}: {error.what}", file=sys.stderr, flush=True)  # noqa: T201 - the rank's log
