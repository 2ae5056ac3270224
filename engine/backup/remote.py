"""One remote as rclone sees it: its type, its paths, what lies there, and what the server itself says of an object."""

from __future__ import annotations

import os
import posixpath
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.backup.hashing import PART_SIZE, part_size_of
from engine.backup.policy import remote_name
from engine.backup.rclone import Daemon, RcloneError

if TYPE_CHECKING:
    import httpx

LINK_S = "10m"
# Remotes whose hash the server computes from what it stores, not from what the uploader said.
HONEST_HASHES = {"local": "sha256", "sftp": "sha256", "drive": "md5", "memory": "md5", "google cloud storage": "md5"}
OPAQUE = ("aws:kms", "aws:kms:dsse")  # with these an ETag is no MD5


@dataclass(frozen=True)
class Seen:
    """What the server says of an object: its size, and the ETag or hash it computed (`form`: etag, md5, sha256)."""

    size: int
    value: str | None
    form: str = "etag"


def config_of(remote: str) -> Path | None:
    """The rclone.conf for a remote: RCLONE_CONFIG, ours where it has the name, else rclone's own default (None)."""
    from engine.backup.remotes import names_in, own_config

    if os.environ.get("RCLONE_CONFIG"):
        return Path(os.environ["RCLONE_CONFIG"])
    name = remote_name(remote)
    return own_config() if not name or name in names_in(own_config()) else None


class Remote:
    """A folder of a remote, through a daemon. Calls may come from several threads."""

    def __init__(self, daemon: Daemon, path: str) -> None:
        self.daemon = daemon
        self.path = path
        self.name = remote_name(path)
        self.options: dict[str, Any] = self._options()
        self.type = str(self.options.get("type", "local" if not self.name else ""))
        self._http: httpx.Client | None = None
        self._lock = threading.Lock()

    def _options(self) -> dict[str, Any]:
        """The remote's settings; credentials are left out at once."""
        if not self.name:
            return {"type": "local"}
        known = self.daemon.call("config/get", name=self.name)
        prefix = f"RCLONE_CONFIG_{self.name.upper().replace('-', '_')}_"
        known.update({key[len(prefix) :].lower(): value for key, value in os.environ.items() if key.startswith(prefix)})
        if not known.get("type"):
            raise RcloneError(
                f"rclone knows no remote called {self.name!r}: didn't find section in config file", cause="other"
            )
        return {
            k: v
            for k, v in known.items()
            if k in ("type", "provider", "server_side_encryption", "endpoint", "sse_customer_algorithm")
        }

    @property
    def is_s3(self) -> bool:
        return self.type == "s3"

    @property
    def opaque(self) -> bool:
        """Whether its ETags are known to say nothing about the content."""
        return self.options.get("server_side_encryption") in OPAQUE or bool(self.options.get("sse_customer_algorithm"))

    def fs(self, size: int = 0) -> str:
        """The folder as rclone wants it, with the part size that a file of `size` bytes goes up in."""
        if not self.is_s3:
            return self.path
        part = part_size_of(size)
        options = f"chunk_size={part}B,upload_cutoff={PART_SIZE}B,disable_checksum=true,no_check_bucket=true"
        # with the slash rclone does not ask whether the folder is a file: a 503 to that question made it say yes
        return f"{self.name},{options}:{self.path.partition(':')[2].rstrip('/')}/"

    def listing(self) -> dict[str, int]:
        """The size of every object below the folder, by its path ({} where there is none).

        Raises:
            RcloneError: it cannot be listed.
        """
        options = {"recurse": True, "noModTime": True, "noMimeType": True, "filesOnly": True}
        try:
            found = self.daemon.call("operations/list", fs=self.fs(), remote="", opt=options, timeout=600.0)
        except RcloneError as error:
            if error.cause == "missing":  # no such folder yet
                return {}
            raise
        return {entry["Path"]: int(entry["Size"]) for entry in found.get("list") or []}

    def see(self, path: str) -> Seen | None:
        """What the server says of one object, asked now; None where there is none.

        S3: a link signed for this object alone, read by its first byte: the ETag is the server's own word, where
        rclone's hash would be what the uploader wrote beside the object.

        Raises:
            RcloneError: the server does not answer.
        """
        if not self.is_s3:
            return self._see_hash(path)
        try:
            url = self.daemon.call("operations/publiclink", fs=self.fs(), remote=path, expire=LINK_S)["url"]
        except RcloneError as error:
            if error.cause == "missing":
                return None
            raise
        return self._head(url)

    def _head(self, url: str) -> Seen | None:
        import httpx

        client = self._client()
        for attempt in range(4):
            try:
                with client.stream(
                    "GET", url, headers={"Range": "bytes=0-0", "Accept-Encoding": "identity"}
                ) as response:
                    status, headers = response.status_code, response.headers
                    if status == 416:
                        total = headers.get("content-range", "").rpartition("/")[2]
                        return self._head_of_empty(client, url) if total in ("", "0", "*") else None
                    if status == 404:
                        return None
                    if status in (200, 206):
                        total = headers.get("content-range", "").rpartition("/")[2] or headers.get(
                            "content-length", "-1"
                        )
                        return Seen(int(total), headers.get("etag", "").strip('"').removeprefix('W/"') or None)
                    text = response.read()[:2000].decode(errors="replace")
                    error = RcloneError(f"StatusCode: {status} {text}")
            except (httpx.HTTPError, ValueError) as failure:
                error = RcloneError(f"{type(failure).__name__}: {failure}", cause="network")
            if error.cause not in ("busy", "network") or attempt == 3:
                break
            time.sleep(0.3 * 2**attempt)
        raise error

    @staticmethod
    def _head_of_empty(client: httpx.Client, url: str) -> Seen:
        response = client.get(url)
        return Seen(len(response.content), response.headers.get("etag", "").strip('"') or None)

    def _see_hash(self, path: str) -> Seen | None:
        item = self.daemon.call("operations/stat", fs=self.path, remote=path).get("item")
        if item is None:
            return None
        form = HONEST_HASHES.get(self.type)
        if form is None:
            return Seen(int(item["Size"]), None)
        answer = self.job("operations/hashsumfile", fs=self.path, remote=path, hashType=form)
        return Seen(int(item["Size"]), answer.get("hash") or None, form)

    def downloaded_sha256(self, path: str, tick: Callable[[], None] | None = None) -> str | None:
        """The SHA-256 of an object's content as it comes back; None where there is none.

        Raises:
            RcloneError: it cannot be read to its end.
        """
        try:
            answer = self.job(
                "operations/hashsumfile", tick, fs=self.fs(), remote=path, hashType="sha256", download=True
            )
        except RcloneError as error:
            if error.cause == "missing":
                return None
            raise
        return str(answer["hash"])

    def job(self, call: str, tick: Callable[[], None] | None = None, **parameters: Any) -> dict[str, Any]:
        """Run a call that may take long as a job of the daemon, and wait for it.

        Raises:
            RcloneError: it failed.
        """
        number = self.daemon.call(call, _async=True, **parameters)["jobid"]
        pause = 0.005
        try:
            while True:
                status = self.daemon.call("job/status", jobid=number)
                if status.get("finished"):
                    break
                if tick:
                    tick()
                time.sleep(pause)
                pause = min(0.25, pause * 1.5)
        except BaseException:
            self.stop_job(number)
            raise
        if not status.get("success"):
            raise RcloneError(str(status.get("error")))
        return status.get("output") or {}

    def stop_job(self, number: int) -> None:
        """End a job; what it had sent of a file is thrown away there."""
        try:
            self.daemon.call("job/stop", jobid=number, timeout=10.0)
        except RcloneError:
            pass  # it is gone, or the daemon is

    def delete(self, path: str) -> None:
        """Remove one object; one that is not there is removed.

        Raises:
            RcloneError: the server refuses.
        """
        try:
            self.daemon.call("operations/deletefile", fs=self.fs(), remote=path)
        except RcloneError as error:
            if error.cause != "missing":
                raise

    def put(self, source: Path, path: str) -> None:
        """Send one small file, and wait."""
        self.job(
            "operations/copyfile",
            srcFs=str(source.parent),
            srcRemote=source.name,
            dstFs=self.fs(source.stat().st_size),
            dstRemote=path,
            _config={"IgnoreTimes": True},  # what is there with this size and time may be something else
        )

    def read(self, path: str) -> bytes | None:
        """The content of a small object; None where there is none."""
        import tempfile

        with tempfile.TemporaryDirectory(prefix="ftui-") as folder:
            try:
                self.job("operations/copyfile", srcFs=self.fs(), srcRemote=path, dstFs=folder, dstRemote="object")
            except RcloneError as error:
                if error.cause == "missing":
                    return None
                raise
            target = Path(folder) / "object"
            return target.read_bytes() if target.exists() else None

    def abort_uploads(self, folder: str, older_than: str) -> None:
        """Abort unfinished multipart uploads below a folder of ours that began longer ago than `older_than`.

        The folder is compared as the beginning of a name: it must end so that no neighbor of it begins like it.
        """
        if not self.is_s3:
            return
        where = posixpath.join(self.path, folder) + "/"
        try:
            self.daemon.call("backend/command", command="cleanup", fs=where, opt={"max-age": older_than}, timeout=120.0)
        except RcloneError:
            pass  # not every server can list them; they cost money, not safety

    def _client(self) -> httpx.Client:
        import httpx

        with self._lock:
            if self._http is None:
                self._http = httpx.Client(timeout=httpx.Timeout(30.0, connect=15.0))
            return self._http

    def close(self) -> None:
        """Close the connections."""
        if self._http is not None:
            self._http.close()
            self._http = None
