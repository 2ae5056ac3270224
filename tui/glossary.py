"""What the figures on the screens mean, for the help. Texts are untranslated, as in the key tables."""

from __future__ import annotations

FIGURES = (
    ("loss", "how wrong the model is on the training data; the line is a moving average, the dim band its extremes"),
    ("eval", "the same on rows kept out of training: when it rises while loss falls, the model memorizes"),
    ("tok/s", "trained tokens a second, padding left out, of all GPUs together"),
    ("MFU", "model FLOPs utilization: share of the GPUs' peak speed that goes into the model; 30-50 % is good"),
    ("step time", "seconds for one step of the optimizer, evaluations and saves left out"),
    ("grad", "length of the gradient before clipping; sudden jumps come before a loss that explodes"),
    ("lr", "learning rate at this step"),
    ("epoch", "how often the whole training data was seen"),
    ("elapsed", "how long the run has held its devices, over all attempts; the time between them does not count"),
    ("ETA", "time left at the pace of the last lines, evaluations and saves included"),
    ("at risk", "what is lost if the run dies now: the steps since the newest sealed checkpoint and their time"),
    ("ours", "host memory of this run's own processes"),
    ("┃", "on a memory bar: what the plan predicted"),
)
