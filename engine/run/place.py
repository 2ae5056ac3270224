"""Whether a run's folder is still where it was when its supervisor started."""

from __future__ import annotations

import os
import time
from pathlib import Path

from engine.workspace import RunFolder

GRACE_S = 5.0  # a folder may be away for a moment: a network disk that is mounted again


class Place:
    """Holds the folder itself, whatever becomes of its path."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        self._folder = os.open(run.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._away_since: float | None = None

    def look(self) -> bool | None:
        """True: it is there. None: not just now. False: it is gone, and the path may be another run's."""
        try:
            if os.path.samestat(os.stat(self.run.path), os.fstat(self._folder)):
                self._away_since = None
                return True
        except FileNotFoundError:
            pass
        except OSError:
            return True  # a disk that does not answer says nothing about the folder
        now = time.monotonic()
        self._away_since = self._away_since or now
        return None if now - self._away_since < GRACE_S else False

    def now(self) -> RunFolder:
        """The folder under the name it has now; one that was deleted gets a name that takes no file."""
        return RunFolder(Path(f"/proc/self/fd/{self._folder}").readlink())
