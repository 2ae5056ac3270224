"""Merging an adapter into its base, shard by shard: the whole model is never in memory.

The light half reads headers only: it finds the base, matches every tensor of the adapter with one of the base and
says all that is wrong before anything is written. The arithmetic runs in a child process with torch, because only
torch's own kernels give PEFT's bits. The result is checked against the adapter, then gets its name by a rename.

Imports everything below it in engine; torch, peft and transformers only in the modules that run as the child
(`__main__`, `arithmetic`, `stream`, `check`, `logits`).
"""
