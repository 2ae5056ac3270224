"""YAML recipes, one per method and size, and the demo's data. Read through importlib.resources."""
