"""`preview`: rows as a model will see them, with what is trained and what is cut marked."""

from __future__ import annotations

import json
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from engine.data import forms, index, reader, sources, turns
from engine.data.forms import Row
from engine.data.tally import Tally
from engine.data.template import TemplateError
from engine.data.tokens import Encoded, Model
from engine.errors import UsageError
from engine.text import _, number

FAR = 1000  # from this row on an index is worth it
SHOWN = 4000  # characters of a row that are printed

MOST = 60_000  # characters (or tokens) of a row that the screen scrolls through

Piece = tuple[str, str | None]


@dataclass
class Shown:
    """One row to be shown: a title, and its text in pieces with their style (None, "accent", "dim" or "error").

    Pieces are turns, one a line, or where `flowing` is set runs of one text.
    """

    line: int
    title: str
    pieces: list[Piece] = field(default_factory=list)
    document: dict[str, Any] = field(default_factory=dict)
    flowing: bool = False
    parts: list[tuple[str, str]] = field(default_factory=list)  # of the screen: text and state, of all of it

    def to_json(self) -> dict[str, Any]:
        """The row for `--json`."""
        return {"line": self.line, **self.document}


def visible(text: str) -> str:
    """Text that a terminal prints and does not obey: controls and invisible characters become escapes."""
    if all(c.isprintable() or c == "\n" for c in text):
        return text
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape", "surrogatepass").decode("ascii") for c in text
    )


def _short(text: str) -> str:
    return (
        text if len(text) <= SHOWN else text[:SHOWN] + _("… ({n} more characters)").format(n=number(len(text) - SHOWN))
    )


def preview(
    file: str,
    *,
    count: int = 3,
    start: int = 1,
    model: str | None = None,
    max_length: int | None = None,
    columns: dict[str, str] | None = None,
    delimiter: str | None = None,
) -> list[Shown]:
    """Some rows of a file, through the model's template where one is given.

    Args:
        file: a file, folder or glob.
        count: how many rows.
        start: the first of them, counted from 1.
        model: a model's folder.
        max_length: what is cut after so many tokens is marked.
        columns: our names of columns to the file's own.
        delimiter: the sign between CSV columns.

    Raises:
        UsageError: the file or the model cannot be read, or has no such row.
    """
    from engine.workspace import locate

    loaded: Model | None = None
    if model is not None:
        from engine.data import tokens

        loaded = tokens.load(model)
    found: list[Shown] = []
    for path in sources.resolve([file]):
        tally = Tally()
        skip = start - 1 if not found else 0
        rows: Iterator[tuple[int, Any]]
        if skip >= FAR and index.is_plain(path):
            indexed = index.build(path, locate().cache_dir)
            rows = (indexed.row(number) for number in range(skip, min(len(indexed), skip + count - len(found))))
        else:
            whole = reader.values(reader.blocks(path, tally, delimiter))
            rows = islice(whole, skip, skip + count - len(found))
        for line, value in rows:
            found.append(shown(f"{path.name}:{line}", line, value, loaded, max_length, columns or {}))
        if len(found) >= count:
            break
        if not found and (problem := next(iter(tally.findings(str(path))), None)):
            raise UsageError(problem.detail, where=str(path), fix=problem.fix, kind=problem.kind)
    if not found:
        raise UsageError(
            _("there is no row {row}").format(row=number(start)),
            where=file,
            fix=_("choose a smaller one"),
            kind="no_row",
        )
    return found


def shown(
    title: str, line: int, value: Any, model: Model | None, max_length: int | None, columns: dict[str, str]
) -> Shown:
    """A row as it is shown.

    Args:
        title: what it is called.
        line: where it is in its file.
        value: what `reader.values` gave.
        model: renders and tokenizes it; None shows its turns.
        max_length: where it is cut.
        columns: our names of columns to the file's.
    """
    problems: list[str] = []

    def say(kind: str, *_details: str, **_more: str) -> None:
        if kind not in problems:
            problems.append(kind)

    if isinstance(value, dict):
        value = forms.rename(value, columns) if columns else value
        form, _used = forms.recognize(value)
    else:
        form = ""
    if not form:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        document = {"form": None, "problems": ["missing_messages"]}
        return Shown(
            line, _("{title}  not a training row").format(title=title), [(visible(_short(text)), "error")], document
        )
    row = forms.make_row(value, form, say)
    turns.check(row, say)
    result = Shown(line, f"{title}  {form}", document={"form": form, "problems": problems})
    if problems:
        result.title += "  " + ", ".join(problems)
    encoded = None if model is None or row.broken else model.encode([row])[0]
    if isinstance(encoded, Encoded):
        assert model is not None
        _tokens(result, encoded, model, max_length)
    else:
        if isinstance(encoded, TemplateError):
            problems.append("template_error")
            result.pieces.append((visible(str(encoded)[:300]), "error"))
        _turns(result, row)
    return result


def _turns(shown: Shown, row: Row) -> None:
    for side, text in row.texts:
        state = "trained" if side in ("assistant", "chosen", "text") else "context"
        shown.parts += [(f"[{side}] ", "special"), (visible(text[:MOST]) + "\n", state)]
        style = "accent" if side in ("assistant", "chosen", "text") else None
        shown.pieces.append((f"[{side}] {visible(_short(text))}", style))
    shown.document["turns"] = [{"role": side, "content": text[:SHOWN]} for side, text in row.texts]


def _tokens(shown: Shown, encoded: Encoded, model: Model, max_length: int | None) -> None:
    """The rendered text: trained parts in the accent color, the rest dim, what is cut in red."""
    shown.flowing = True
    total = encoded.total
    kept = total if max_length is None else min(total, max_length)
    trained = encoded.trained[:kept].count(1)
    how = _("all tokens are trained")
    if model.trl_form:
        how = _("trained by TRL's form of the template")
    elif model.masks_answers:
        how = _("trained by the template's marks")
    words = _("{title}  {total} tokens, {trained} trained ({how}), {cut} cut")
    shown.title = words.format(
        title=shown.title, total=number(total), trained=number(trained), how=how, cut=number(total - kept)
    )
    segments = list(_segments(encoded, kept))
    special = {i for i, token in model.tokenizer.get_added_tokens_decoder().items() if token.special}
    shown.parts = [(visible(text), state) for text, state in _segments(encoded, kept, special, MOST)]
    room = SHOWN
    for text, state in segments:
        if room <= 0:
            break
        style = {"trained": "accent", "cut": "error"}.get(state, "dim")
        shown.pieces.append((visible(text[:room]), style))
        room -= len(text)
    shown.document |= {
        "tokens": total,
        "trained": trained,
        "cut": total - kept,
        "mask": "trl" if model.trl_form else "template" if model.masks_answers else "all",
        "segments": [{"text": text[:SHOWN], "state": state} for text, state in segments[:200]],
    }


def _segments(
    encoded: Encoded, kept: int, special: Container[int] = (), most: int | None = None
) -> Iterator[tuple[str, str]]:
    """Runs of text with one state: "trained", "context" or "cut"; "special" for context of these tokens.

    Together they are the rendered text, or its first `most` tokens.
    """
    begin = end = 0
    current: str | None = None
    for at, (start, stop) in enumerate(encoded.offsets if most is None else encoded.offsets[:most]):
        state = "cut" if at >= kept else "trained" if encoded.trained[at] else "context"
        if state == "context" and encoded.ids[at] in special:
            state = "special"
        if state != current and current is not None:
            border = max(start, end)
            yield encoded.text[begin:border], current
            begin = border
        current, end = state, max(end, stop)
    if current is not None:
        whole = most is None or len(encoded.offsets) <= most
        yield encoded.text[begin:] if whole else encoded.text[begin:end], current
