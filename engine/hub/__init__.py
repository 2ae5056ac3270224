"""Models of the hub: what one would take, fetching it with hashes checked, what this machine has, removing it.

Light: huggingface_hub only. May import engine.recipe (where the cache is), engine.hardware and what they may.
"""
