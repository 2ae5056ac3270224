"""A small server on loopback that speaks as much of the hub's protocol as huggingface_hub needs to fetch a repository.

Files are served from memory with ranges, ETags and the commit header; a repository may be gated, private or damaged,
and the server may fail, be slow or break a transfer off.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

LARGE = 1024  # files from this size on are "LFS": named by sha256


@dataclass
class Repository:
    """A repository: its files, and what is wrong with it."""

    files: dict[str, bytes]
    kind: str = "models"
    gated: bool = False
    card: dict[str, object] = field(default_factory=dict)
    served: dict[str, bytes] = field(default_factory=dict)  # what is sent instead of the true content

    @property
    def commit(self) -> str:
        """A commit that names the content."""
        return hashlib.sha1(b"".join(name.encode() + data for name, data in sorted(self.files.items()))).hexdigest()

    def entry(self, name: str) -> dict[str, object]:
        """A file as the API lists it."""
        data = self.files[name]
        entry: dict[str, object] = {"rfilename": name, "size": len(data), "blobId": blob(data)}
        if len(data) >= LARGE:
            entry["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
        return entry


def blob(data: bytes) -> str:
    """Git's name of a content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@dataclass
class Hub:
    """The server: its address, its repositories, what was asked of it, and how it misbehaves."""

    address: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)
    status: int = 200  # another one answers every request with it
    pause_s: float = 0.0  # before each block of a file
    break_after: int | None = None  # bytes of a large file after which the connection is cut, once

    def fetched(self) -> list[str]:
        """The files whose content was asked for."""
        return [path for method, path in self.requests if method == "GET" and "/resolve/" in path]


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_args: object) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append((self.command, path))
        if self.hub.status != 200:
            self._send(self.hub.status, b'{"error": "out of order"}', body=body)
        elif path.startswith("/api/"):
            self._api(path.removeprefix("/api/"), body=body)
        elif "/resolve/" in path:
            self._file(path, body=body)
        else:
            self._send(404, b"{}", body=body)

    def _repository(self, kind: str, name: str, *, body: bool) -> Repository | None:
        repository = self.hub.repositories.get(name)
        if repository is None or repository.kind != kind:
            self._send(404, b'{"error": "not found"}', {"X-Error-Code": "RepoNotFound"}, body=body)
            return None
        return repository

    def _allowed(self, repository: Repository, *, body: bool) -> bool:
        if repository.gated and "Bearer" not in self.headers.get("authorization", ""):
            self._send(403, b'{"error": "gated"}', {"X-Error-Code": "GatedRepo"}, body=body)
            return False
        return True

    def _api(self, path: str, *, body: bool) -> None:
        kind, _slash, rest = path.partition("/")
        name, _word, tail = rest.partition("/revision/")
        revision = tail.partition("/")[0]
        name, _word, tree = name.partition("/tree/")
        revision, _slash, _folder = (revision or tree).partition("/")
        repository = self._repository(kind, name, body=body)
        if repository is None or not self._allowed(repository, body=body):
            return
        if revision not in ("", "main", repository.commit):
            self._send(404, b'{"error": "no revision"}', {"X-Error-Code": "RevisionNotFound"}, body=body)
            return
        if tree:
            entries = [
                {"type": "file", "path": item, "size": len(data), "oid": blob(data)}
                | (
                    {"lfs": {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}}
                    if len(data) >= LARGE
                    else {}
                )
                for item, data in repository.files.items()
            ]
            self._send(200, json.dumps(entries).encode(), {"Content-Type": "application/json"}, body=body)
            return
        document = {
            "id": name,
            "modelId": name,
            "sha": repository.commit,
            "private": False,
            "gated": "manual" if repository.gated else False,
            "disabled": False,
            "tags": [],
            "downloads": 0,
            "likes": 0,
            "cardData": repository.card,
            "siblings": [repository.entry(item) for item in repository.files],
        }
        self._send(200, json.dumps(document).encode(), {"Content-Type": "application/json"}, body=body)

    def _file(self, path: str, *, body: bool) -> None:
        left, _word, right = path.partition("/resolve/")
        kind, name = ("datasets", left[10:]) if left.startswith("/datasets/") else ("models", left[1:])
        revision, _slash, item = right.partition("/")
        repository = self._repository(kind, name, body=body)
        if repository is None or not self._allowed(repository, body=body):
            return
        if revision not in ("main", repository.commit) or item not in repository.files:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": repository.commit}, body=body)
            return
        data = repository.files[item]
        etag = hashlib.sha256(data).hexdigest() if len(data) >= LARGE else blob(data)
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": repository.commit, "Accept-Ranges": "bytes"}
        sent = repository.served.get(item, data)
        start = 0
        if asked := self.headers.get("range"):
            start = int(asked.removeprefix("bytes=").partition("-")[0])
            headers["Content-Range"] = f"bytes {start}-{len(sent) - 1}/{len(sent)}"
        self._send(206 if asked else 200, sent[start:], headers, body=body, large=len(data) >= LARGE)

    def _send(
        self, status: int, data: bytes, headers: dict[str, str] | None = None, *, body: bool, large: bool = False
    ) -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if not body:
            return
        for at in range(0, len(data), 65536):
            if self.hub.pause_s:
                time.sleep(self.hub.pause_s)
            if large and self.hub.break_after is not None and at >= self.hub.break_after:
                self.hub.break_after = None
                self.connection.close()
                return
            self.wfile.write(data[at : at + 65536])


@contextmanager
def serve() -> Iterator[Hub]:
    """Run a hub on a free port of loopback."""
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.handle_error = lambda *_args: None  # type: ignore[method-assign] # a client that went away
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
