"""The checkpoint screen's keys for other places: back up, verify there, pause, limit, restore, give back."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from engine.errors import FtuiError
from engine.text import _, gigabytes
from tui.modals.ask import Ask
from tui.modals.report import Report

if TYPE_CHECKING:
    from engine.workspace import RunFolder
    from tui.app import FtuiApp


class BackupKeys:
    """Actions of `CheckpointsScreen`; the long ones are the commands of the same name, in processes of their own."""

    if TYPE_CHECKING:
        folder: RunFolder
        app: Any

        @property
        def ftui(self) -> FtuiApp:
            """The app."""

        def _background(self, what: str, task: Any, done: Any) -> None: ...

        def _say(self, text: str) -> None: ...

    def _command(self, *words: str) -> dict[str, Any]:
        """Run `ftui backup …` and return its document; its error is ours. It goes on when the app is left."""
        import orjson

        argv = [sys.executable, "-m", "tui", "--home", str(self.ftui.workspace.root), "backup", *words, "--json"]
        env = {**os.environ, "PYTHONSAFEPATH": "1"}
        ended = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, env=env, start_new_session=True, check=False
        )
        try:
            document: dict[str, Any] = orjson.loads(ended.stdout)
        except ValueError:
            document = {}
        error = document.get("error")
        if isinstance(error, dict):
            raise FtuiError(str(error.get("message")), where=error.get("where"), fix=error.get("fix"))
        if not document:
            raise FtuiError(_("the command ended with {code}").format(code=ended.returncode), where=" ".join(argv[4:]))
        return document

    def action_backup_now(self) -> None:
        """Send what is missing, and prove it."""
        busy = _("backing up {run}").format(run=self.folder.name)
        self._background(busy, partial(self._command, "now", self.folder.name), self._backed_up)

    def _backed_up(self, document: dict[str, Any]) -> None:
        if problems := document.get("problems"):
            self.app.push_screen(Report(_("not everything is proved"), [str(line) for line in problems]))
            return
        self._say(_("everything that the backup wants is proved at {remote}").format(remote=document.get("remote")))

    def action_verify_there(self) -> None:
        """Ask the remote whether all of it is there and right."""
        busy = _("asking the remote")
        self._background(busy, partial(self._command, "verify", self.folder.name), self._verified_there)

    def _verified_there(self, document: dict[str, Any]) -> None:
        rows = [*document.get("checkpoints", []), *document.get("others", [])]
        lines = [
            f"{row['name']}: {finding.get('kind')}: {finding.get('detail')}"
            for row in rows
            for finding in row.get("findings", [])
        ]
        lines += [_("{name} is not there").format(name=name) for name in document.get("missing") or ()]
        if lines:
            self.app.push_screen(Report(_("something is wrong or missing there"), lines))
        else:
            self._say(_("everything that is wanted is there and right"))

    def action_pause_backup(self) -> None:
        """Stop sending, or go on."""

        def task() -> Any:
            from engine.backup import control

            wish = control.change(self.ftui.workspace, paused=not control.read(self.ftui.workspace).paused)
            if not wish.paused:
                from engine import keeper

                keeper.ensure(self.ftui.workspace)
            return wish

        self.ftui.background(
            task, lambda wish: self._say(_("uploads are paused") if wish.paused else _("uploads go on"))
        )

    def action_limit_backup(self) -> None:
        """Limit the bandwidth of uploads."""

        def chosen(text: str | None) -> None:
            if not text:
                return

            def task() -> Any:
                from engine.backup import control
                from engine.backup.policy import rate

                return control.change(self.ftui.workspace, limit=rate(text, text))

            self.ftui.background(task, self._limited)

        self.app.push_screen(Ask(_("limit for uploads: 50M for 50 MB a second, or off"), "off"), chosen)

    def _limited(self, wish: Any) -> None:
        text = _("at most {rate} a second").format(rate=gigabytes(wish.limit)) if wish.limit else _("no limit")
        self._say(text)

    def action_restore(self) -> None:
        """Bring a run or a checkpoint back from a remote."""

        def task() -> str:
            from engine.backup.status import effective

            policy = effective(self.folder)
            return policy.to(self.folder.name) if policy else ""

        def chosen(source: str | None) -> None:
            if source:
                busy = _("restoring {source}").format(source=source)
                self._background(busy, partial(self._command, "restore", source), self._restored)

        self.ftui.background(
            task, lambda source: self.app.push_screen(Ask(_("restore from REMOTE:PATH"), source), chosen)
        )

    def _restored(self, document: dict[str, Any]) -> None:
        self._say(_("restored to {path}").format(path=document.get("path") or document.get("run")))

    def action_give_back(self) -> None:
        """Can this server be given back now?"""
        give_back(self.ftui)


def give_back(app: FtuiApp) -> None:
    """Show the hand-back check over whatever is in front."""

    def task() -> Any:
        from engine.lease import handback

        return handback.check(app.workspace)

    def done(found: Any) -> None:
        from engine.lease import handback

        first, *rest = [text for text, _style in handback.lines(found, everything=True)]
        app.push_screen(Report(first, rest))

    app.background(task, done, busy=_("looking at everything on this server"))
