"""Recipes of other tools: read (Axolotl, LLaMA-Factory, TRL, torchtune) and written (Axolotl, LLaMA-Factory, a plain
TRL script). May import engine.recipe and what that may; loads nothing that trains.

    imported = read(Path("axolotl.yaml"))      # .tool, .values, .findings: what is not carried, with its line
    text = recipe_text(imported)               # a recipe of ours
    files = export(loaded, "axolotl")          # {file name: text}, findings
"""
