"""A run's life: launch it, supervise it, ask it for things, say how it is.

Imports what is below it (recipe, hardware, checkpoint's ledger, train's launcher command, process, journal); no
torch. `status` and `control` are imported by every command and screen, so they load next to nothing themselves.
"""
