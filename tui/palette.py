"""What the command palette knows: actions of this screen, the runs, the themes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content

from engine.text import _
from tui.keys import TABLES
from tui.themes import THEMES

if TYPE_CHECKING:
    from tui.app import FtuiApp

Command = tuple[str, Callable[[], Awaitable[Any] | None], str]


class FtuiCommands(Provider):
    """One provider: the list is short enough to be matched at once."""

    def _commands(self) -> Iterator[Command]:
        ftui = cast("FtuiApp", self.app)
        screen = self.screen
        for table, owner in ((ftui.key_table(screen), screen), ("app", ftui)):
            for key in TABLES.get(table or "", ()):
                if key.id != "palette":
                    yield key.text, partial(ftui.run_action, key.action, owner), key.signs
        yield _("plan a run"), ftui.open_planner, ""
        yield _("can this server be given back?"), partial(_give_back, ftui), ""
        yield _("serve a model"), ftui.ask_serve, ""
        for row in ftui.runs or ():
            yield _("open {run}").format(run=row.name), partial(ftui.open_run, row.run), row.what
        for theme in THEMES:
            yield _("theme {name}").format(name=theme.name), partial(ftui.choose_theme, theme.name), ""

    async def discover(self) -> Hits:
        """Everything, before a letter is typed."""
        for text, run, more in self._commands():
            yield DiscoveryHit(Content.assemble(text, "  ", (more, "$muted")), run, text=text)

    async def search(self, query: str) -> Hits:
        """What matches."""
        matcher = self.matcher(query)
        for text, run, more in self._commands():
            if (score := matcher.match(text)) > 0:
                yield Hit(score, Content.assemble(matcher.highlight(text), "  ", (more, "$muted")), run, text=text)


def _give_back(app: FtuiApp) -> None:
    from tui.screens.checkpoint_backup import give_back

    give_back(app)
