"""Asks a running server whether it serves what was trained: template, adapter, and how fast.

Three questions: does the served chat template make the same token ids of a conversation as training did; does the
adapter change the answers (greedy, against the base on the same server); how long until the first token, and how many
a second. Prompts come from the run's held-out rows, else from a few general ones.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from engine.errors import FtuiError
from engine.files import write_json
from engine.serve.launch import Served
from engine.text import _

PROMPTS = 8
MAX_TOKENS = 64
REQUEST_S = 300.0
TOLD_S = 5  # between two words about a server that is still starting
GENERAL = (
    "Say in one sentence what a checkpoint is.",
    "Name three prime numbers.",
    "Translate to French: good morning.",
    "What is 17 + 25?",
)
Conversation = list[dict[str, Any]]


@dataclass
class Check:
    """What the server answered. None: could not be asked (the reason is among the notes).

    Attributes:
        template: whether the served token ids of each prompt are those of training.
        adapter: whether tuned and base answer differently.
        first_token_s: median seconds until the first token.
        tokens_per_s: of one conversation after its first token, median.
        answers: a prompt with what the tuned model (and the base) said.
        notes: what could not be checked, and why.
    """

    prompts: int = 0
    template: bool | None = None
    adapter: bool | None = None
    first_token_s: float | None = None
    tokens_per_s: float | None = None
    answers: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether nothing was found wrong."""
        return self.template is not False and self.adapter is not False

    def to_json(self) -> dict[str, Any]:
        """The check as a JSON object."""
        return {**asdict(self), "passed": self.passed}


def wait_ready(served: Served, say: Callable[[str], None] = lambda text: None) -> None:
    """Wait until the server answers.

    Raises:
        FtuiError: it ended instead.
    """
    began, told = time.monotonic(), -1
    while True:
        state = served.state()
        if state["state"] == "ready":
            return
        if state["state"] not in ("starting", "unhealthy", "restarting"):
            error = state.get("error") or {}
            lines = error.get("lines") or []
            raise FtuiError(
                _("the server did not come up: {reason}").format(
                    reason=_reason(lines) or error.get("how") or state["state"]
                ),
                where=str(served.log),
                fix=_("read its log; `ftui serve … --print` shows the command to try by hand"),
                kind="server_failed",
            )
        waited = int(time.monotonic() - began)
        if waited // TOLD_S != told:
            told = waited // TOLD_S
            say(_("starting the server ({s} s)").format(s=waited))
        time.sleep(0.25)


def _reason(lines: list[str]) -> str:
    """The line of a traceback's end that says what happened."""
    telling = [line for line in lines if "Error" in line or "error" in line]
    return (telling or lines or [""])[-1].strip()[:300]


def check(
    served: Served, conversations: Iterable[Conversation] = (), say: Callable[[str], None] = lambda text: None
) -> Check:
    """Ask the server and keep what it said in `check.json`.

    Args:
        served: a server that is ready.
        conversations: prompts (messages that end with the user's); general ones where there are none.
        say: takes progress for people.

    Raises:
        FtuiError: the server refuses or does not answer.
    """
    prompts = list(conversations)[:PROMPTS] or [[{"role": "user", "content": text}] for text in GENERAL]
    spec, result = served.spec, Check(prompts=len(prompts))
    with Client(served) as client:
        say(_("comparing the served chat template with training's"))
        _template(client, served, spec, prompts, result)
        firsts, rates = [], []
        base = spec["served"] if spec["served"] != spec["tuned"] else None
        for number, messages in enumerate(prompts, 1):
            say(_("asking {n} of {all}").format(n=number, all=len(prompts)))
            answer = client.stream(spec["tuned"], messages)
            firsts.append(answer.first_s)
            if answer.rate:
                rates.append(answer.rate)
            entry = {"prompt": messages[-1]["content"], "tuned": answer.text}
            if base is not None:
                entry["base"] = client.stream(base, messages).text
            result.answers.append(entry)
    if base is not None:
        result.adapter = any(entry["tuned"] != entry["base"] for entry in result.answers)
    else:
        result.notes.append(_("one whole model is served: there is no base beside it to compare with"))
    result.first_token_s = _median(firsts)
    result.tokens_per_s = _median(rates)
    write_json(served.folder / "check.json", {"format": 1, "time": time.time(), **result.to_json()})
    return result


def _template(client: Client, served: Served, spec: dict[str, Any], prompts: list[Conversation], result: Check) -> None:
    ours = training_ids(spec, prompts)
    if ours is None:
        result.notes.append(_("the template was not compared: the model has no chat template or tokenizer.json"))
        return
    theirs = [client.render(spec["tuned"], messages) for messages in prompts]
    if any(ids is None for ids in theirs):
        result.notes.append(_("the template was not compared: this server does not tell its token ids"))
        return
    result.template = theirs == ours


def training_ids(spec: dict[str, Any], prompts: list[Conversation]) -> list[list[int]] | None:
    """The token ids that training makes of the prompts, with the tokenizer that was saved with what was trained."""
    from engine.data import tokens
    from engine.data.template import TemplateError

    for place in (*(adapter["path"] for adapter in spec["adapters"][:1]), spec["model"]):
        if not (Path(place) / "tokenizer.json").is_file():
            continue
        try:
            model = tokens.load(place)
            if model.template is None:
                continue  # an adapter's folder may hold a tokenizer without a template: the base has it
            texts = [model.template.render(messages, add_generation_prompt=True)[0] for messages in prompts]
        except (FtuiError, TemplateError):
            continue
        return [model.tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    return None


def held_out(run_data: Path, count: int = PROMPTS) -> list[Conversation]:
    """Prompts of a run's held-out rows: each conversation up to its last answer."""
    found: list[Conversation] = []
    try:
        with open(run_data / "held_out.jsonl", encoding="utf-8") as file:
            for line in file:
                row = json.loads(line)
                messages = row.get("messages") if isinstance(row, dict) else None
                if isinstance(messages, list) and len(messages) > 1 and messages[-1].get("role") == "assistant":
                    found.append(messages[:-1])
                if len(found) == count:
                    break
    except (OSError, ValueError):
        pass
    return found


def _median(values: list[float]) -> float | None:
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else None


@dataclass(frozen=True)
class Answer:
    """One answer: the text, seconds to its first token, tokens a second after it (None for a single token)."""

    text: str
    first_s: float
    rate: float | None
    tokens: int


class Client:
    """Speaks to a server as any OpenAI client would."""

    def __init__(self, served: Served) -> None:
        import httpx

        self.url = served.url
        self._http = httpx.Client(
            base_url=served.url,
            headers={"Authorization": f"Bearer {served.key}"},
            timeout=REQUEST_S,
            trust_env=False,  # a proxy has no business between this machine and itself
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_error: object) -> None:
        self._http.close()

    def render(self, model: str, messages: Conversation) -> list[int] | None:
        """The token ids that the server makes of a conversation; None where it does not tell.

        vLLM has two endpoints for it, and serves the first only when it was started for several servers.
        """
        import httpx

        body = {"model": model, "messages": messages, "add_generation_prompt": True}
        for path in ("/v1/chat/completions/render", "/tokenize"):
            try:
                response = self._http.post(path, json=body)
            except httpx.HTTPError as error:
                raise self._away(error) from error
            if response.status_code not in (403, 404, 405):
                return prompt_ids(self._document(response))
        return None

    def metrics(self) -> dict[str, float]:
        """The server's counters, those of one name added up; none where it does not answer."""
        import httpx

        try:
            response = self._http.get("/metrics", timeout=2.0)
        except httpx.HTTPError:
            return {}
        return counters(response.text) if response.status_code == 200 else {}

    def stream(
        self,
        model: str,
        messages: Conversation,
        *,
        max_tokens: int = MAX_TOKENS,
        told: Callable[[str], None] = lambda text: None,
    ) -> Answer:
        """One greedy answer; `told` hears what there is of it so far.

        Raises:
            FtuiError: the server refuses or does not answer.
        """
        import httpx

        body = {"model": model, "messages": messages, "max_tokens": max_tokens, "temperature": 0, "stream": True}
        began = time.monotonic()
        first, last, count, text = None, began, 0, ""
        try:
            with self._http.stream("POST", "/v1/chat/completions", json=body) as response:
                if response.status_code != 200:
                    response.read()
                    self._document(response)
                for line in response.iter_lines():
                    piece = _piece(line)
                    if piece:
                        last = time.monotonic()
                        first = first or last
                        count += 1
                        text += piece
                        told(text)
        except httpx.HTTPError as error:
            raise self._away(error) from error
        spent = last - first if first else 0.0
        rate = (count - 1) / spent if count > 1 and spent > 0 else None
        return Answer(text, (first or time.monotonic()) - began, rate, count)

    def _document(self, response: Any) -> Any:
        if response.status_code != 200:
            raise FtuiError(
                _("the server answers {status}: {text}").format(status=response.status_code, text=response.text[:300]),
                where=str(response.request.url),
                fix=_("its log says more"),
                kind="server_refused",
            )
        return response.json()

    def _away(self, error: Exception) -> FtuiError:
        return FtuiError(
            _("the server does not answer: {reason}").format(reason=str(error) or type(error).__name__),
            where=self.url,
            fix=_("`ftui serve --list` shows its state"),
            kind="server_away",
        )


def counters(text: str) -> dict[str, float]:
    """Prometheus' text format, without labels."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        name, _space, value = line.rpartition(" ")
        if name and not line.startswith("#"):
            try:
                found[name.partition("{")[0]] = found.get(name.partition("{")[0], 0.0) + float(value)
            except ValueError:
                continue
    return found


def prompt_ids(document: Any) -> list[int] | None:
    """The token ids in a server's answer to `render`: a list of its own, or inside the request it would run."""
    if isinstance(document, list):
        return prompt_ids(document[0]) if document else None
    if not isinstance(document, dict):
        return None
    for key in ("token_ids", "prompt_token_ids", "tokens"):
        if isinstance(document.get(key), list):
            return [int(token) for token in document[key]]
    return next((ids for value in document.values() if (ids := prompt_ids(value)) is not None), None)


def _piece(line: str) -> str:
    """The text of one line of a stream."""
    if not line.startswith("data:") or line.strip() == "data: [DONE]":
        return ""
    try:
        choices = json.loads(line[5:]).get("choices") or [{}]
    except ValueError:
        return ""
    delta = choices[0].get("delta") or {}
    return str(delta.get("content") or delta.get("reasoning_content") or "")
