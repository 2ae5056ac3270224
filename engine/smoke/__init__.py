"""The rehearsal of a recipe: its data, template, method and sharding on a small model of the same architecture.

    shrink.py     the small configuration (plain JSON)
    __main__.py   [torch] makes its weights, as a program of its own
    rehearsal.py  the folder, cached by what it was made of, and the values a rehearsal replaces

Light but for `__main__`. May import engine.run and what it may.
"""
