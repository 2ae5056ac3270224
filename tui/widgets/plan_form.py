"""The planner's form: what of a recipe decides memory and time, and the machine that it is held against."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Grid, Horizontal
from textual.message import Message
from textual.suggester import Suggester
from textual.widgets import Input, Label

from engine.errors import UsageError
from engine.text import _
from tui.keys import TABLES, bindings
from tui.widgets.cells import Cells, CellWidget, Ink

if TYPE_CHECKING:
    from engine.plan.draft import Draft

SERVER = "server"
Kind = str  # "text", "number" or "choice"


@dataclass(frozen=True)
class Field:
    """One field. `key` is the recipe's; `choices` are values with their untranslated words."""

    key: str
    label: str
    kind: Kind
    choices: tuple[tuple[Any, str], ...] = ()


ON_OFF = ((True, "on"), (False, "off"))
FIELDS = (
    Field("model_name_or_path", "model", "text"),
    Field(SERVER, "server", "text"),
    Field("method", "method", "choice", (("lora", "LoRA"), ("qlora", "QLoRA"), ("full", "full"))),
    Field("dataset_path", "data", "text"),
    Field("num_train_epochs", "epochs", "number"),
    Field("max_steps", "max steps", "number"),
    Field("max_length", "max length", "number"),
    Field("per_device_train_batch_size", "micro-batch", "number"),
    Field("global_batch_size", "global batch", "number"),
    Field("lora_r", "rank", "number"),
    Field("gradient_checkpointing", "checkpointing", "choice", ON_OFF),
    Field("packing", "packing", "choice", ON_OFF),
    Field(
        "sharding",
        "sharding",
        "choice",
        tuple((name, name) for name in ("auto", "none", "ddp", "fsdp2", "zero2", "zero3", "pipeline")),
    ),
    Field(
        "optim",
        "optimizer",
        "choice",
        (
            ("adamw_torch_fused", "AdamW"),
            ("adamw_8bit", "8-bit"),
            ("paged_adamw_8bit", "paged 8b"),
            ("adafactor", "Adafactor"),
        ),
    ),
)
WIDE = frozenset({"model_name_or_path", "dataset_path"})
BY_KEY = {field.key: field for field in FIELDS}


class FieldChanged(Message):
    """The user gave a field another value; `error` where it is none."""

    def __init__(self, key: str, value: Any, error: UsageError | None = None) -> None:
        super().__init__()
        self.key = key
        self.value = value
        self.error = error


class Complete(Suggester):
    """Completes names from a list, and paths from the disk."""

    def __init__(self, names: Callable[[], Iterable[str]], *, files: tuple[str, ...] | None = None) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._names = names
        self._files = files

    async def get_suggestion(self, value: str) -> str | None:
        """The first that goes on from what is typed."""
        if not value:
            return None
        if self._files is not None and value.startswith((".", "/", "~", "$")):
            return self._path(value)
        folded = value.casefold()
        for name in self._names():
            if name.casefold().startswith(folded) and len(name) > len(value):
                return value + name[len(value) :]
        return self._path(value) if self._files is not None else None

    def _path(self, value: str) -> str | None:
        folder, _slash, begun = value.rpartition("/")
        place = os.path.expanduser(folder + "/") if folder or value.startswith("/") else "."  # noqa: PTH111
        try:
            with os.scandir(os.path.expandvars(place)) as entries:
                found = sorted(entry.name + "/" * entry.is_dir() for entry in entries if self._wanted(entry, begun))
        except (OSError, ValueError):
            return None
        return value + found[0][len(begun) :] if found else None

    def _wanted(self, entry: os.DirEntry[str], begun: str) -> bool:
        if not entry.name.startswith(begun) or (entry.name.startswith(".") and not begun) or entry.name == begun:
            return False
        return entry.is_dir() or entry.name.endswith(self._files or ())


class PlanInput(Input):
    """A text or a number of the form."""

    def __init__(self, field: Field, suggester: Suggester | None = None) -> None:
        kind: Any = "integer" if field.kind == "number" and field.key != "num_train_epochs" else "text"
        super().__init__(type=kind, compact=True, suggester=suggester, id=field.key, valid_empty=True)
        self.field = field
        self.cursor_blink = False

    def on_blur(self) -> None:
        """A long name is read from its beginning."""
        self.cursor_position = 0

    def on_key(self, event: events.Key) -> None:
        """The keys of the table "plan_number"; no binding sees them, because an Input takes what can be printed."""
        steps = {key.first: 1 if key.id == "more" else -1 for key in TABLES["plan_number"]}
        if self.field.kind == "number" and event.key in steps:
            event.prevent_default()
            event.stop()
            self.action_step(steps[event.key])

    def action_step(self, by: int) -> None:
        """Double or halve."""
        try:
            now = float(self.value or self.placeholder.replace(",", ""))
        except ValueError:
            return
        changed = now * 2 if by > 0 else now / 2
        self.value = (
            f"{max(1, round(changed))}" if changed >= 1 or self.field.key != "num_train_epochs" else f"{changed:g}"
        )

    def meant(self) -> Any:
        """The value as a recipe has it; None for an empty field.

        Raises:
            UsageError: it is no number.
        """
        text = self.value.strip()
        if not text or self.field.kind == "text":
            return text or None
        try:
            return float(text) if self.field.key == "num_train_epochs" and "." in text else int(text)
        except ValueError:
            raise UsageError(_("'{text}' is not a number").format(text=text[:40]), where=self.field.key) from None


class PlanChoice(CellWidget, can_focus=True):
    """One of a few values: the arrows go through them."""

    BINDINGS: ClassVar = bindings("plan_choice")

    def __init__(self, field: Field) -> None:
        super().__init__(id=field.key)
        self.field = field
        self.value: Any = field.choices[0][0]
        self.more = ""

    def show(self, value: Any, more: str = "") -> None:
        """Show a value; `more` is what it became (`auto → ddp`)."""
        self.value, self.more = value, more
        self.repaint()

    def paint(self, cells: Cells) -> None:
        """The value, between arrows where it can be changed now."""
        words = dict(self.field.choices)
        text = _(words[self.value]) if self.value in words else str(self.value)
        ink = Ink.ACCENT if self.has_focus else Ink.STRONG
        x = cells.put(0, 0, text, ink)
        if self.more and x + 1 + len(self.more) <= cells.width:
            cells.put(x, 0, f" {self.more}", Ink.MUTED)

    def watch_has_focus(self, has_focus: bool) -> None:
        """Drawn otherwise with the focus."""
        super().watch_has_focus(has_focus)
        self.repaint()

    def action_step(self, by: int) -> None:
        """Another value."""
        values = [value for value, _word in self.field.choices]
        index = values.index(self.value) + by if self.value in values else 0
        self.post_message(FieldChanged(self.field.key, values[index % len(values)]))

    def on_click(self, event: events.Click) -> None:
        """A click goes on to the next value."""
        event.stop()
        self.focus()
        self.action_step(1)


class PlanForm(Grid):
    """All fields; posts `FieldChanged` for each key that is pressed in them."""

    def compose(self) -> ComposeResult:
        """Four columns; model and data take two."""
        column = 0
        for field in FIELDS:
            with Horizontal(classes="field" + (" -wide" if field.key in WIDE else "")):
                yield Label(
                    _(field.label), classes=f"-column{column % 4}" + (" -server" if field.key == SERVER else "")
                )
                yield PlanChoice(field) if field.kind == "choice" else PlanInput(field, _suggester(field))
            column += 2 if field.key in WIDE else 1

    def show(self, draft: Draft, values: Mapping[str, Any], typing: str | None = None) -> None:
        """Fill the fields: what the recipe says as text, what follows from it as a hint; not under one's fingers."""
        for field in FIELDS:
            if field.kind == "choice":
                value = values.get(field.key, field.choices[0][0])
                if field.key == "sharding":  # resolved already in the values
                    value = draft.said.get(field.key, "auto")
                self.query_one(f"#{field.key}", PlanChoice).show(value)
                continue
            box = self.query_one(f"#{field.key}", PlanInput)
            said = draft.server if field.key == SERVER else draft.said.get(field.key)
            text = _shown(said, draft)
            box.placeholder = _("this machine") if field.key == SERVER else _shown(values.get(field.key), draft)
            if box.value != text and field.key != typing:
                with self.prevent(Input.Changed):
                    box.value = text
                    box.cursor_position = len(text) if box.has_focus else 0

    def show_sharding(self, chosen: str) -> None:
        """What `sharding: auto` became."""
        box = self.query_one("#sharding", PlanChoice)
        box.show(box.value, f"→ {chosen}" if box.value == "auto" else "")

    def mark(self, key: str | None) -> None:
        """Show which field is wrong."""
        for box in self.query(PlanInput):
            box.set_class(box.field.key == key, "-wrong")

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        event.stop()
        box = event.input
        assert isinstance(box, PlanInput)
        try:
            self.post_message(FieldChanged(box.field.key, box.meant()))
        except UsageError as error:
            self.post_message(FieldChanged(box.field.key, None, error))


def _shown(value: Any, draft: Draft) -> str:
    if value is None or value == -1:  # the trainer's "no limit"
        return ""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    folder = str(draft.path.absolute().parent) + "/"
    for base, short in ((folder, ""), (str(Path.cwd()) + "/", "./")):
        if text.startswith(base):
            return short + text[len(base) :]
    return text


def _suggester(field: Field) -> Suggester | None:
    if field.key == "model_name_or_path":
        return Complete(_models, files=())
    if field.key == "dataset_path":
        return Complete(lambda: ("builtin:support",), files=(".jsonl", ".json", ".csv", ".parquet"))
    if field.key == SERVER:
        return Complete(_servers)
    return None


def _models() -> list[str]:
    from engine.plan import models

    entries = models.catalogue().values()
    names = dict.fromkeys(entry["name"] for entry in entries)
    return ["builtin:tiny", *names, *(name.rsplit("/", 1)[-1] for name in names)]


def _servers() -> list[str]:
    from engine.plan import servers

    offered = servers.offers(servers.user_file()).servers
    return [*dict.fromkeys(server.spec for server in offered), *(server.id for server in offered)]
