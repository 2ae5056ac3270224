"""Training data: read it, check it, render it through a model's template, before a GPU is paid for.

Light: no torch, transformers, trl or datasets (a tokenizer is used through `tokenizers`, a chat template through
jinja2). May import what lies below it: engine.hardware and further down. Rows are streamed in blocks, and each block is
checked by a worker process where that is worth it, so the size of a file does not matter.
"""
