"""What does the work: one folder per verb, none of which imports ``tui`` or Textual.

The light side (everything but ``train`` and the parts marked so) imports no torch; import-linter holds it.
"""
