"""Above the checkpoints: what would be lost if the server vanished now, the upload, the lease."""

from __future__ import annotations

from engine.text import _
from tui.state.checkpoints import BackupView
from tui.widgets.cells import Cells, CellWidget, Ink

TONES = {"good": Ink.GOOD, "warning": Ink.WARNING, "error": Ink.ERROR, "muted": Ink.MUTED}
LABEL = 8


class LossLine(CellWidget):
    """The one question, answered in one line."""

    DEFAULT_CSS = """
    LossLine { height: 1; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._view = BackupView()

    def show(self, view: BackupView) -> None:
        """Draw it."""
        self._view = view
        self.repaint()

    def paint(self, cells: Cells) -> None:
        """Where it is narrow the beginning is shortened, not the answer."""
        if not self._view.loss:
            return
        for begin in (_("If this server vanished now"), _("Vanished now:"), ""):
            if 1 + len(begin) + 1 + len(self._view.loss) < cells.width or not begin:
                x = cells.put(1, 0, begin, Ink.MUTED) + (1 if begin else 0)
                cells.put_text(x, 0, self._view.loss, TONES.get(self._view.loss_tone, Ink.PLAIN))
                return


class BackupStrip(CellWidget):
    """The upload and the lease; a line is there only where there is something to say."""

    DEFAULT_CSS = """
    BackupStrip { height: 0; }
    BackupStrip.-one { height: 1; }
    BackupStrip.-two { height: 2; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[tuple[str, str, Ink]] = []

    def show(self, view: BackupView, lease: tuple[str, str]) -> None:
        """Draw these."""
        found = []
        if view.upload:
            found.append((_("upload"), view.upload, TONES.get(view.upload_tone, Ink.PLAIN)))
        if lease[0]:
            found.append((_("lease"), lease[0], TONES.get(lease[1], Ink.PLAIN)))
        if found != self._lines:
            self._lines = found
            self.set_class(len(found) == 1, "-one")
            self.set_class(len(found) == 2, "-two")
            self.repaint()

    def paint(self, cells: Cells) -> None:
        """A label and its text."""
        for y, (label, text, ink) in enumerate(self._lines):
            cells.put(1, y, label, Ink.MUTED)
            cells.put_text(1 + LABEL, y, text, ink)
