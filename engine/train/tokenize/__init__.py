"""From files of rows to tokens on disk: a process of its own before the ranks start (see `__main__`).

`encode`, `blocks`, `packing` and `store` load no torch; `prepare` puts them together, `text` knows the model's own
tokenizer through transformers, and `cache` keeps what was made for the next run with the same data.
"""
