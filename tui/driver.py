"""The terminal's driver, which outlives input that is no UTF-8."""

from __future__ import annotations

from textual.drivers.linux_driver import LinuxDriver


class FtuiDriver(LinuxDriver):
    """Textual's own ends the app, with a traceback on the screen, at the first byte that is not UTF-8.

    Such bytes come from a paste in another encoding, from keys typed before the terminal is in raw mode, and from old
    mouse reports of columns beyond 95.
    """

    def _run_input_thread(self) -> None:
        while True:
            try:
                self.run_input_thread()
            except UnicodeDecodeError:  # what was read with them is lost; what comes next is not
                if not self.exit_event.is_set():
                    continue
            except Exception as error:  # noqa: BLE001 - to where all errors of the app go
                self._app.call_later(self._app._handle_exception, error)
            return
