"""Where unexpected errors go: the traceback into a log file, one clear line to the user."""

from __future__ import annotations

import contextlib
import logging
import logging.handlers
import tempfile
from pathlib import Path

from engine.errors import FtuiError
from engine.text import _


def log_file(home: str | None) -> Path:
    """The first place that can be written: the workspace's logs, else the temporary folder."""
    from engine.workspace import locate

    try:
        folder = locate(home).root / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "ftui.log"
        path.open("a").close()
    except (OSError, RuntimeError, ValueError, FtuiError):  # whatever was wrong with the place is not the news now
        return Path(tempfile.gettempdir()) / "ftui.log"
    return path


class _Handler(logging.handlers.RotatingFileHandler):
    """Raises what it cannot write: logging itself would print a traceback of that."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Called in the `except` of what failed."""
        raise  # noqa: PLE0704


def _log(path: Path, error: BaseException) -> bool:
    """Append `error` with its traceback; whether that could be written."""
    logger = logging.getLogger("ftui.crash")
    logger.propagate = False
    try:
        handler = _Handler(path, maxBytes=4_000_000, backupCount=2)
    except OSError:
        return False
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.addHandler(handler)
    try:
        logger.error("unexpected error", exc_info=error)
        return True
    except OSError:
        return False
    finally:
        logger.removeHandler(handler)
        with contextlib.suppress(OSError):
            handler.close()


def record(error: BaseException, home: str | None) -> FtuiError:
    """Log `error` with its traceback and return what to tell the user."""
    written = (str(path) for path in (log_file(home), Path(tempfile.gettempdir()) / "ftui.log") if _log(path, error))
    where = next(written, None)  # a full disk must not hide the error itself
    reason = f"{type(error).__name__}: {error}".splitlines()[0][:300]
    if isinstance(error, OSError) and error.strerror:
        named = f" ({error.filename})" if error.filename else ""
        return FtuiError(
            f"{error.strerror}{named}",
            where=where,
            fix=_("free or fix that place; details are in the log") if where else _("free or fix that place"),
            kind="os",
        )
    return FtuiError(
        _("this should not have happened: {reason}").format(reason=reason),
        where=where,
        fix=_("the log has the details; runs in progress are not affected") if where else None,
        kind="unexpected",
    )
