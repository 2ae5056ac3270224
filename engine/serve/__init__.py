"""Serving a run's result or any model folder: an OpenAI-compatible server in a supervised process of its own.

    target.py     what is served: base, adapters or a whole model, under which names
    engines.py    vLLM from its own environment, else transformers: arguments and environment
    fit.py        weights and KV cache against the cards (or the host's memory)
    launch.py     starts, finds and stops servers; one folder each under <home>/serve/
    __main__.py   the server's supervisor: restarts, health, log
    check.py      asks the running server: template, adapter, speed
    handoff.py    the lines that a user copies: tunnel, curl, client, systemd, compose
    transformers_server.py   [torch] transformers' server behind a key, under our names

Light but for the last. May import engine.merge, engine.run and what they may.
"""
