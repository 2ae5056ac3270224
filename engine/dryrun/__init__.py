"""The dry run: one training step of the real libraries on tensors without storage, counted byte by byte.

Runs as a process of its own (`python -m engine.dryrun`), started by engine.plan.dryrun: a native abort of torch must
not take the terminal with it. Loads torch, transformers, TRL and PEFT; imports nothing else of the engine. `depth` is
arithmetic and loads nothing.
"""
