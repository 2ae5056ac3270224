"""transformers' own server behind a key and under our model name.

`transformers serve` knows neither: anybody on the machine may use it, and requests name a folder. Its application is
wrapped here, nothing in it is changed: a request without the key is refused, the model's name stands for its folder,
`/v1/chat/completions/render` tells the prompt's token ids (as vLLM's does), `/metrics` counts.

    FTUI_SERVE_KEY=… python -m engine.serve.transformers_server FOLDER --served-model-name NAME --port 8000
"""

from __future__ import annotations

import argparse
import hmac
import json
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
OPEN = ("/health",)
MAX_BODY = 16 * 1024 * 1024


class Front:
    """An ASGI application in front of transformers' own."""

    def __init__(self, app: Any, *, key: str, name: str, folder: str, render: Callable[[dict[str, Any]], Any]) -> None:
        self.app, self.key, self.name, self.folder, self.render = app, key, name, folder, render
        self.created = int(time.time())
        self.requests = self.running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["path"] in OPEN:
            await self.app(scope, receive, send)
            return
        if not self._allowed(scope):
            await _answer(send, 401, {"error": {"message": "missing or wrong API key", "type": "invalid_api_key"}})
        elif scope["path"] == "/v1/models":
            entry = {
                "id": self.name,
                "object": "model",
                "created": self.created,
                "owned_by": "ftui",
                "root": self.folder,
            }
            await _answer(send, 200, {"object": "list", "data": [entry]})
        elif scope["path"] == "/metrics":
            text = f"ftui:requests_total {self.requests}\nftui:requests_running {self.running}\n"
            await _send(send, 200, text.encode(), b"text/plain; version=0.0.4")
        elif scope["method"] == "POST":
            await self._post(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def _allowed(self, scope: Scope) -> bool:
        given = dict(scope["headers"]).get(b"authorization", b"")
        return hmac.compare_digest(given, f"Bearer {self.key}".encode())

    async def _post(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if len(body) > MAX_BODY:
                await _answer(send, 413, {"error": {"message": "the request is too large"}})
                return
            if not message.get("more_body"):
                break
        try:
            document = json.loads(body)
        except ValueError:
            document = None
        if isinstance(document, dict):
            asked = document.get("model")
            if asked not in (None, self.name, self.folder):
                await _answer(send, 404, {"error": {"message": f"no model {asked!r} here, only {self.name!r}"}})
                return
            document["model"] = self.folder
            if scope["path"] == "/v1/chat/completions/render":
                await self._rendered(document, send)
                return
            body = json.dumps(document).encode()
        headers = [(name, value) for name, value in scope["headers"] if name != b"content-length"]
        scope = {**scope, "headers": [*headers, (b"content-length", str(len(body)).encode())]}
        sent = False

        async def replay() -> dict[str, Any]:
            nonlocal sent
            if sent:
                return await receive()  # a client that goes away
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        self.requests += 1
        self.running += 1
        try:
            await self.app(scope, replay, send)
        finally:
            self.running -= 1

    async def _rendered(self, document: dict[str, Any], send: Send) -> None:
        try:
            ids = self.render(document)
        except Exception as error:  # noqa: BLE001 a template may raise anything; it is the answer
            await _answer(send, 400, {"error": {"message": f"{type(error).__name__}: {error}"}})
            return
        await _answer(send, 200, {"token_ids": ids})


async def _answer(send: Send, status: int, document: dict[str, Any]) -> None:
    await _send(send, status, json.dumps(document).encode(), b"application/json")


async def _send(send: Send, status: int, body: bytes, kind: bytes) -> None:
    headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def main() -> None:
    """Serve a model folder until the process is told to end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--served-model-name", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--device", default="auto")
    args, extra = parser.parse_known_args()
    key = os.environ.pop("FTUI_SERVE_KEY")

    import typer
    from transformers import AutoTokenizer
    from transformers.cli import serve
    from transformers.cli.serving import server

    tokenizer = AutoTokenizer.from_pretrained(args.folder)

    def render(document: dict[str, Any]) -> list[int]:
        options = document.get("chat_template_kwargs") or {}
        rendered = tokenizer.apply_chat_template(
            document["messages"],
            tools=document.get("tools"),
            add_generation_prompt=document.get("add_generation_prompt", True),
            tokenize=True,
            return_dict=True,
            **options,
        )
        return [int(token) for token in rendered["input_ids"]]  # type: ignore[index, call-overload]

    original = server.build_server

    def behind_a_key(*positional: Any, **named: Any) -> Front:
        app = original(*positional, **named)
        return Front(app, key=key, name=args.served_model_name, folder=args.folder, render=render)

    server.build_server = behind_a_key  # type: ignore[assignment] # serve.Serve looks it up when it is called
    application = typer.Typer()
    application.command()(serve.Serve)
    application(
        [
            args.folder,
            "--host",
            args.host,
            "--port",
            str(args.port),
            "--dtype",
            args.dtype,
            "--device",
            args.device,
            "--default-seed",
            "0",
            *extra,
        ]
    )


if __name__ == "__main__":
    main()
