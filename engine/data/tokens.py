"""Rows as a model sees them: its tokenizer and chat template without transformers, and which tokens are trained.

Agrees token by token with `apply_chat_template(..., return_assistant_tokens_mask=True)` and with TRL's SFTTrainer.
"""

from __future__ import annotations

import bisect
import importlib.util
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.data.forms import Row
from engine.data.template import Span, Template, TemplateError
from engine.errors import UsageError
from engine.files import user_path
from engine.recipe import hub
from engine.recipe.paths import HUB_ID
from engine.text import _
from engine.workspace import locate

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
LIMIT = 2_000_000  # characters of a row that are tokenized: beyond any context, and a gigabyte less of memory
UNBOUNDED = 10**9  # a model_max_length beyond it means "none"


@dataclass
class Encoded:
    """One row in tokens: ids, the text behind each, and a mask (1: trained)."""

    ids: list[int]
    trained: bytearray
    offsets: list[Span] = field(default_factory=list)
    text: str = ""
    share: float = 1.0  # of the row that was tokenized: of an enormous one only the beginning is

    @property
    def total(self) -> int:
        """How many tokens the row has, reckoned up where only its beginning was tokenized."""
        return round(len(self.ids) / self.share)


@dataclass
class Model:
    """What a model's folder says about text: tokenizer, special tokens, chat template."""

    folder: Path
    tokenizer: Tokenizer
    special: dict[str, str]
    template: Template | None
    max_length: int | None
    trl_form: str | None = None  # `template` is TRL's training form of the folder's own, which has no marks
    template_problem: str | None = None  # why the folder's template does not compile

    @property
    def masks_answers(self) -> bool:
        """Whether the template tells which tokens are the assistant's."""
        return self.template is not None and self.template.has_markers

    def encode(self, rows: Sequence[Row]) -> list[Encoded | TemplateError]:
        """Each row in tokens, as the trainer would make them; an error where the template refuses it."""
        results: list[Encoded | TemplateError | None] = [None] * len(rows)
        ready: list[tuple[int, str, list[Span] | None, str | None]] = []
        for place, row in enumerate(rows):
            if row.text is not None or row.plain:
                results[place] = self._plain(row)
                continue
            try:
                ready.append((place, *self._render(row)))
            except TemplateError as error:
                results[place] = error
        encodings = self.tokenizer.encode_batch([text[:LIMIT] for _p, text, _s, _q in ready], add_special_tokens=False)
        for (place, text, spans, prompt), encoding in zip(ready, encodings, strict=True):
            ids, offsets = encoding.ids, encoding.offsets  # each is made anew when asked for
            if prompt is not None:
                shared = _common(self.tokenizer.encode(prompt[:LIMIT], add_special_tokens=False).ids, ids)
                trained = _after(shared, len(ids))
            else:
                trained = _after(0, len(ids)) if spans is None else mask(offsets, spans)
            results[place] = Encoded(ids, trained, offsets, text, min(1.0, LIMIT / max(1, len(text))))
        return [result for result in results if result is not None]

    def _render(self, row: Row) -> tuple[str, list[Span] | None, str | None]:
        """A conversation's text; the places in it that are trained (None: all); its prompt, where all after that is."""
        if self.template is None:
            raise TemplateError(_("the model has no chat template"))
        assert row.messages is not None
        messages = row.messages + (row.chosen or [])
        text, spans = self.template.render(messages, row.tools)
        if row.chosen is None and row.prompt_length is None:
            return text, spans if self.template.has_markers else None, None
        count = len(row.messages) if row.chosen is not None else row.prompt_length
        prompt, _spans = self.template.render(messages[:count], row.tools, add_generation_prompt=True)
        return text, None, prompt

    def _plain(self, row: Row) -> Encoded:
        """Text, or prompt and completion as texts: with the end token, and what the tokenizer adds by itself."""
        eos = self.special.get("eos_token", "")
        if row.text is not None:
            text = row.text if not eos or row.text.endswith(eos) else row.text + eos
            encoding = self.tokenizer.encode(text[:LIMIT])
            share = min(1.0, LIMIT / max(1, len(text)))
            return Encoded(encoding.ids, _after(0, len(encoding.ids)), encoding.offsets, text, share)
        assert row.messages is not None
        prompt = row.messages[0]["content"]
        answer = (row.chosen or row.messages[1:])[0]["content"]
        text = prompt + answer if not eos or answer.endswith(eos) else prompt + answer + eos
        encoding = self.tokenizer.encode(text[:LIMIT])
        shared = _common(self.tokenizer.encode(prompt[:LIMIT]).ids, encoding.ids)
        share = min(1.0, LIMIT / max(1, len(text)))
        return Encoded(encoding.ids, _after(shared, len(encoding.ids)), encoding.offsets, text, share)


def _common(a: list[int], b: list[int]) -> int:
    count = 0
    for left, right in zip(a, b, strict=False):
        if left != right:
            break
        count += 1
    return count


def mask(offsets: Sequence[Span], spans: Sequence[Span]) -> bytearray:
    """Which tokens overlap a place that the assistant wrote (both in order)."""
    result = bytearray(len(offsets))
    for start, end in spans:
        first = bisect.bisect_right(offsets, start, key=lambda offset: offset[1])
        last = bisect.bisect_left(offsets, end, key=lambda offset: offset[0])
        if first < last:
            result[first:last] = b"\1" * (last - first)
    return result


def _after(start: int, count: int) -> bytearray:
    """A mask of `count` tokens, trained from one on."""
    return bytearray(start) + b"\1" * (count - start)


def located(name: str, cache: Path | None = None) -> Path:
    """The folder of a model on this machine: one that is given, a snapshot of the hub's, or the built-in one."""
    folder = user_path(name)
    if folder.is_dir():
        return folder
    found: list[Path] = []
    if name.startswith("builtin:"):
        built = (cache or locate().cache_dir) / "builtin"
        found = sorted(built.glob(f"{name.partition(':')[2]}-*/tokenizer.json"), key=lambda file: file.stat().st_mtime)
    elif HUB_ID.match(name):
        found = [snapshot / "tokenizer.json" for snapshot in hub.snapshots(name)]
    found = [file for file in found if file.is_file()]
    return found[-1].parent if found else folder


def load(name: str) -> Model:
    """The model in a folder.

    Raises:
        UsageError: it is no folder with a tokenizer.json.
    """
    from tokenizers import Tokenizer

    folder = located(name)
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise UsageError(
            _("there is no tokenizer.json in the model's folder"),
            where=str(folder),
            fix=_("give a downloaded model's folder with tokenizer.json and tokenizer_config.json"),
            kind="missing_model",
        )
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:
        raise UsageError(
            _("the tokenizer cannot be read: {reason}").format(reason=str(error)[:200]),
            where=str(file),
            fix=_("copy the model's files again"),
            kind="missing_model",
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    config = {**_json(folder / "special_tokens_map.json"), **_json(folder / "tokenizer_config.json")}
    special = {key: text for key in SPECIAL if (text := _token_text(config.get(key)))}
    _add_missing(tokenizer, config, special)
    problem = None
    try:
        own = _template(folder, config, special)
    except TemplateError as error:
        own, problem = None, str(error)
    template, form = training_form(own)
    length = config.get("model_max_length")
    known = isinstance(length, int | float) and 0 < length < UNBOUNDED
    return Model(folder, tokenizer, special, template, int(length) if known else None, form, problem)  # type: ignore[arg-type]


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UsageError(
            _("{file} of the model cannot be read: {reason}").format(file=path.name, reason=error),
            where=str(path),
            fix=_("copy the model's files again"),
            kind="missing_model",
        ) from error
    return value if isinstance(value, dict) else {}


def _token_text(value: Any) -> str | None:
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) and text else None


def _add_missing(tokenizer: Tokenizer, config: dict[str, Any], special: dict[str, str]) -> None:
    """Special tokens that only the configuration knows become tokens, as transformers does it on loading."""
    from tokenizers import AddedToken

    extra = config.get("additional_special_tokens") or config.get("extra_special_tokens") or []
    names = list(special.values())
    names += [text for item in extra if (text := _token_text(item))] if isinstance(extra, list) else []
    for entry in (config.get("added_tokens_decoder") or {}).values():
        if isinstance(entry, dict) and (text := _token_text(entry)) and tokenizer.token_to_id(text) is None:
            flags = {name: bool(entry.get(name, False)) for name in ("lstrip", "rstrip", "single_word")}
            normalized = bool(entry.get("normalized", not entry.get("special")))
            token = AddedToken(text, special=bool(entry.get("special")), normalized=normalized, **flags)
            (tokenizer.add_special_tokens if entry.get("special") else tokenizer.add_tokens)([token])
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    tokenizer.add_special_tokens(
        [AddedToken(name, special=True, normalized=False) for name in names if name not in known]
    )


def _template(folder: Path, config: dict[str, Any], special: dict[str, str]) -> Template | None:
    value = config.get("chat_template")
    for name in ("chat_template.jinja", "chat_template.json"):
        file = folder / name
        if file.is_file():
            value = file.read_text(encoding="utf-8") if name.endswith("jinja") else _json(file).get("chat_template")
            break
    if isinstance(value, list):  # named variants
        value = {item.get("name"): item.get("template") for item in value if isinstance(item, dict)}
    if isinstance(value, dict):
        value = value.get("default")
    if not isinstance(value, str) or not value:
        return None
    return Template(value, special)


def training_form(own: Template | None) -> tuple[Template | None, str | None]:
    """TRL's form of a well-known template, with marks, where TRL is installed; its files are read, not imported."""
    if own is None or own.has_markers:
        return own, None
    spec = importlib.util.find_spec("trl")
    if spec is None or not spec.origin:
        return own, None
    folder = Path(spec.origin).parent / "chat_templates"
    for file in sorted(folder.glob("*.jinja")):
        training = file.with_name(f"{file.stem}_training.jinja")
        if training.is_file() and file.read_text(encoding="utf-8") == own.text:
            return Template(training.read_text(encoding="utf-8"), own.variables), file.stem
    return own, None
