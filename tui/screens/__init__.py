"""One module a screen, with its `.tcss` beside it. A screen draws what a source read and holds no logic of its own."""
