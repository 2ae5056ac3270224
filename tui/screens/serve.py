"""Serving: what will run and whether it fits; start, health, a chat beside the base, and what to copy where."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from rich.text import Text
from textual import on, work
from textual.app import ComposeResult
from textual.containers import Horizontal, VerticalScroll
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Input, Static

from engine.errors import FtuiError
from engine.text import _, printable
from tui.keys import bindings
from tui.serve_text import Turn, answers, card, facts, title
from tui.state.serve import ServeSnapshot
from tui.widgets.header_bar import HeaderBar
from tui.widgets.key_bar import KeyBar

if TYPE_CHECKING:
    from engine.serve.launch import Served
    from engine.serve.offer import Offer
    from tui.app import FtuiApp

POLL_S = 1.0
LOG_LINES = 200


class ServerRead(Message):
    """The server is no longer as it was shown."""

    def __init__(self, snapshot: ServeSnapshot) -> None:
        super().__init__()
        self.snapshot = snapshot

    def can_replace(self, message: Message) -> bool:
        """A newer snapshot makes one that still waits pointless."""
        return isinstance(message, ServerRead)


class ServeScreen(Screen[None]):
    """One thing to serve: a run's result, an adapter or a model.

    Args:
        name: as `ftui serve` takes it.
    """

    CSS_PATH = "serve.tcss"
    BINDINGS: ClassVar = bindings("serve")
    AUTO_FOCUS = ""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.target = name
        self.snapshot = ServeSnapshot()
        self.offer: Offer | None = None
        self.problem: FtuiError | None = None  # why it cannot be served
        self.doing = ""  # what is under way
        self.turns: list[Turn] = []
        self._merged = False
        self._busy = False
        self._ended, self._in_front, self._wake = threading.Event(), threading.Event(), threading.Event()

    @property
    def ftui(self) -> FtuiApp:
        """The app, by its own type."""
        return cast("FtuiApp", self.app)

    def compose(self) -> ComposeResult:
        """State, facts, the two answers, the chat's line, keys."""
        yield HeaderBar(ascii_only=self.ftui.ascii_only)
        yield Static(id="title")
        yield Static(id="facts")
        with Horizontal(id="answers"):
            for side in ("tuned", "base"):
                yield VerticalScroll(Static(id=side), id=f"side-{side}", can_focus=False)
        box = Input(placeholder=_("enter: ask it something"), compact=True, id="ask")
        box.cursor_blink = False
        yield box
        yield KeyBar("serve", "app")

    def on_mount(self) -> None:
        """Look at what there is, in threads."""
        self.query_one(HeaderBar).show(self.ftui.runs)
        self._look()
        self._follow()
        self._draw()

    def on_screen_resume(self) -> None:
        self._in_front.set()
        self._wake.set()

    def on_screen_suspend(self) -> None:
        if not self.app.screen.is_modal:
            self._in_front.clear()

    def on_unmount(self) -> None:
        self._ended.set()
        self._in_front.set()
        self._wake.set()

    def on_resize(self) -> None:
        self._draw()

    # Reading

    @work(thread=True, group="serve-source", exclusive=True)
    def _follow(self) -> None:
        from tui.sources.serve_source import ServeSource

        source, shown = None, None
        while self._in_front.wait() and not self._ended.is_set():
            self._wake.clear()
            name = self._server_name()
            if source is None or source.name != name:
                source = ServeSource(self.ftui.workspace, name)
            snapshot = source.poll()
            if snapshot != shown:
                shown = snapshot
                self.post_message(ServerRead(snapshot))
            self._wake.wait(POLL_S)

    def _server_name(self) -> str:
        offer = self.offer
        return offer.target.name if offer is not None else Path(self.target).name

    @on(ServerRead)
    def _read(self, message: ServerRead) -> None:
        self.snapshot = message.snapshot
        self.refresh_bindings()
        self._draw()

    def _look(self) -> None:
        """Find out what serving would be."""
        merged, workspace = self._merged, self.ftui.workspace

        def task() -> Offer:
            from engine.serve import offer

            return offer.look(workspace, self.target, merged=merged)

        def found(offer: Offer) -> None:
            self.offer, self.problem = offer, None
            self._wake.set()
            if self.is_attached:
                self.refresh_bindings()
                self._draw()

        def failed(error: FtuiError) -> None:
            self.problem = error
            if self.is_attached:
                self._draw()

        self.ftui.background(task, found, failed=failed)

    # Drawing

    def _draw(self) -> None:
        color = self.ftui.rich_color
        width = self.app.size.width
        with self.app.batch_update():
            self._put("#title", title(self.target, self.snapshot, color, ascii_only=self.ftui.ascii_only))
            self._put("#facts", facts(self.offer, self.snapshot, self.problem, self.doing, color, width))
            self._draw_chat()

    def _draw_chat(self) -> None:
        color = self.ftui.rich_color
        hint = self._chat_hint()
        for side in ("tuned", "base"):
            self._put(f"#{side}", answers(side, self.turns, color, hint if not self.turns else ""))
            self.query_one(f"#side-{side}", VerticalScroll).scroll_end(animate=False)
        self.query_one("#side-base").display = self._has_base() or any(turn.base is not None for turn in self.turns)
        self.query_one("#ask").display = self.snapshot.state == "ready"

    def _chat_hint(self) -> str:
        if self.snapshot.state == "ready":
            return _("enter asks it something; b serves the base beside it") if not self._has_base() else ""
        return "" if self.snapshot.live or self.doing else _("s starts it")

    def _put(self, where: str, text: Text) -> None:
        widget = self.query_one(where, Static)
        if widget.content != text:
            widget.update(text)

    # Acting

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """What cannot be done now has no key."""
        live, ready = self.snapshot.live, self.snapshot.state == "ready"
        if action == "start":
            return (not live and self.offer is not None and not self._busy) or None
        if action == "stop":
            return live or None
        if action in ("chat", "card", "check"):
            return ready or None
        if action == "base":
            return (ready and not self._has_base() and self.offer is not None and self.offer.base is not None) or None
        if action == "form":
            return (not live and self.offer is not None and self.offer.choice) or None
        return True

    def _has_base(self) -> bool:
        return self.snapshot.base is not None or self.snapshot.base_state == "ready"

    def _background(self, task: Callable[[Callable[[str], None]], Any], done: Callable[[Any], None]) -> None:
        """One long thing at a time; what it says stands among the facts."""
        if self._busy:
            self.notify(_("it still works on something else"), markup=False)
            return
        self._busy = True

        def say(text: str) -> None:
            if not self._ended.is_set():
                self.app.call_from_thread(self._say, text)

        def over(then: Callable[[Any], None], result: Any) -> None:
            self._busy, self.doing = False, ""
            self._wake.set()
            if self.is_attached:
                self.refresh_bindings()
                then(result)
                self._draw()

        self.ftui.background(lambda: task(say), partial(over, done), failed=partial(over, self.ftui.report))

    def _say(self, text: str) -> None:
        if self.is_attached:
            self.doing = text
            self._draw()

    def action_back(self) -> None:
        """Out of the chat's line first; then back. The server goes on."""
        if self.focused is not None:
            self.set_focus(None)
        else:
            self.app.pop_screen()

    def action_form(self) -> None:
        """The adapter on its base, or one whole model."""
        self._merged = not self._merged
        self._look()

    def action_start(self) -> None:
        """Merge, start, wait, check."""
        workspace, merged = self.ftui.workspace, self._merged

        def task(say: Callable[[str], None]) -> Served:
            from engine.serve import offer

            say(_("starting"))
            return offer.begin(workspace, self.target, merged=merged, say=say)

        self.turns = []

        def started(_served: object) -> None:
            self.notify(_("it answers; c is the hand-off"), markup=False)
            self._look()

        self._background(task, started)
        self.refresh_bindings()

    def action_base(self) -> None:
        """A server of the base beside this one."""
        base = self.offer.base if self.offer is not None else None
        if base is None:
            return
        workspace, name = self.ftui.workspace, self._server_name()

        def task(say: Callable[[str], None]) -> Any:
            from engine.serve import offer

            say(_("starting the base beside it"))
            served = offer.existing(workspace, name)
            return served and offer.begin_base(workspace, served, base, say)

        self._background(task, lambda _served: None)

    def action_stop(self) -> None:
        """End the server, after a question."""
        workspace, name = self.ftui.workspace, self._server_name()

        def task(say: Callable[[str], None]) -> bool:
            from engine.serve import launch, offer

            say(_("it ends"))
            servers = [offer.existing(workspace, one) for one in (offer.base_name(name), name)]
            ended = [launch.stop(served) for served in servers if served is not None]
            return all(ended)

        def ended(all_of_them: bool) -> None:
            self._look()
            if not all_of_them:
                self.notify(_("it did not end yet; o shows its log"), severity="warning", markup=False)

        question = _("Stop serving {name}? Requests under way are finished first.").format(name=name)
        self.ftui.confirm(question, lambda: self._background(task, ended))

    def action_check(self) -> None:
        """Ask again whether it answers as it was trained."""
        workspace, name = self.ftui.workspace, self._server_name()

        def task(say: Callable[[str], None]) -> Any:
            from engine.serve import check, offer
            from engine.workspace import RunFolder

            served = offer.existing(workspace, name)
            if served is None:
                return None
            run = served.spec.get("run")
            return check.check(served, check.held_out(RunFolder(workspace.runs_dir / run).data) if run else (), say)

        self._background(task, lambda _checked: None)

    # Chat

    def action_chat(self) -> None:
        """To the chat's line."""
        self.query_one("#ask", Input).focus()

    @on(Input.Submitted, "#ask")
    def _asked(self, event: Input.Submitted) -> None:
        question = event.value.strip()
        if not question or self._busy:
            return
        event.input.value = ""
        turn = Turn(question, base="" if self._has_base() else None)
        before = list(self.turns)
        self.turns.append(turn)
        self._draw_chat()
        workspace, name, server = self.ftui.workspace, self._server_name(), self.snapshot

        def changed() -> None:
            if not self._ended.is_set():
                self.app.call_from_thread(self._answered)

        def task(_say: Callable[[str], None]) -> None:
            from tui.sources.serve_chat import ask

            ask(workspace, name, server, before, turn, changed)

        self._background(task, lambda _none: None)

    def _answered(self) -> None:
        if self.is_attached:
            self._draw_chat()

    def action_new(self) -> None:
        """Forget the conversation."""
        if not self._busy:
            self.turns = []
            self._draw_chat()

    def action_scroll(self, by: int) -> None:
        """Older and newer answers."""
        for side in ("tuned", "base"):
            self.query_one(f"#side-{side}", VerticalScroll).scroll_relative(y=by, animate=False)

    # Handing off

    def _card(self) -> list[tuple[str, str]]:
        from engine.serve import offer

        served = offer.existing(self.ftui.workspace, self._server_name())
        return card(served) if served is not None else []

    def action_card(self) -> None:
        """What to copy where."""
        from tui.modals.card import Card

        heading = _("hand-off of {name}").format(name=self.snapshot.tuned)
        self.ftui.background(self._card, lambda found: self.app.push_screen(Card(heading, found)))

    def action_log(self) -> None:
        """The end of the server's log."""
        from tui.modals.report import Report

        def task() -> list[str]:
            from engine.process.daemon import last_lines
            from engine.serve import offer

            served = offer.existing(self.ftui.workspace, self._server_name())
            return last_lines(served.log, LOG_LINES) if served is not None else []

        def show(lines: list[str]) -> None:
            lines = [printable(line) for line in lines] or [_("nothing yet")]
            self.app.push_screen(Report(_("log of {name}").format(name=self._server_name()), lines))

        self.ftui.background(task, show)

    def action_copy(self) -> None:
        """The curl line of a server that runs, else the command."""
        if self.snapshot.state == "ready":

            def copy(found: list[tuple[str, str]]) -> None:
                for _heading, line in found[1:2]:
                    self.ftui.copy(line, _("the curl line"))

            self.ftui.background(self._card, copy)
        elif self.offer is not None:
            self.ftui.copy(self.offer.command, _("the command"))
