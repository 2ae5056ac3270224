"""A probe beside the terminal: `ftui plan --probe` in a process of its own, its progress, its end. No Textual here."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from engine.errors import FtuiError
from engine.text import _

STEPS = 10


class Probe:
    """One probe. The ranks end with their command, so it has a main thread of its own, which ours is not."""

    def __init__(self, recipe: Path, overrides: Sequence[str], home: Path, say: Callable[[str], None]) -> None:
        self.argv = [
            sys.executable, "-m", "tui", "--json", "plan", str(recipe), *overrides, "--probe", str(STEPS),
            "--home", str(home),
        ]  # fmt: skip
        self.say = say
        self.stopped = False
        self._process: subprocess.Popen[str] | None = None

    def run(self) -> None:
        """Wait for its end (in a thread); a plan made afterwards has what it measured.

        Raises:
            FtuiError: the steps failed.
        """
        with tempfile.TemporaryFile() as answer:
            self._process = subprocess.Popen(
                self.argv, stdin=subprocess.DEVNULL, stdout=answer, stderr=subprocess.PIPE, text=True,
                errors="replace", start_new_session=True,
            )  # fmt: skip
            if self.stopped:
                self.stop()
            assert self._process.stderr is not None
            for line in self._process.stderr:
                if line.strip() and not self.stopped:
                    self.say(line.strip())
            code = self._process.wait()
            answer.seek(0)
            text = answer.read()
        if self.stopped or code in (0, 3):
            return
        try:
            error = json.loads(text)["error"]
            raise FtuiError(
                error["message"], where=error.get("where"), fix=error.get("fix"), kind=error.get("kind"),
                exit_code=error.get("exit_code") or 1,
            )  # fmt: skip
        except (ValueError, KeyError, TypeError):
            raise FtuiError(_("the probe ended with exit code {code}").format(code=code)) from None

    def stop(self) -> None:
        """End it; it clears away what it began."""
        self.stopped = True
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
