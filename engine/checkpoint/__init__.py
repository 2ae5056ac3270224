"""Sealed checkpoints: the atomic commit, its manifest, the list of them, which to resume from, which to retire.

Light: no torch. The trainer's side of a save is in `engine.train.saving`.
"""
