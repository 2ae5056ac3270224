"""Is the tuned model better than its base? Loss, answers, scores with their intervals, what was forgotten, the gate.

The light half decides what is asked, scores the answers and writes the report. Models run in a child process with
torch (`python -m engine.evaluate`), which keeps each answer in a store as it is made: an interrupted evaluation goes
on, and a repeated one computes nothing.

Imports everything below it in engine; torch, peft and transformers only in the modules that run as the child
(`__main__`, `inputs`, `models`, `loss`, `generate`, `harness`).
"""
