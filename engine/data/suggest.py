"""What the lengths of the rows suggest for a recipe: where to cut, whether to pack, how many rows a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

STEPS_OF_LENGTH = tuple(sorted({*(1 << n for n in range(7, 20)), *(3 << n for n in range(6, 18))}))
CUT_SHARE = 0.01  # rows that may lose their end
FULL = 0.6  # of a sequence's room: below it packing is worth it
FEWEST_STEPS = 50  # of an epoch
BATCHES = (64, 32, 16)  # 16 is the default, which eight GPUs can share


@dataclass(frozen=True)
class Advice:
    """Values for a recipe and what they lead to."""

    max_length: int
    cut: float  # share of the rows that is cut there
    packing: bool
    filled: float  # share of a sequence's room that one row fills
    global_batch_size: int
    steps: int  # of an epoch

    def changes(self) -> dict[str, Any]:
        """The recipe's keys."""
        return {
            "max_length": self.max_length, "packing": self.packing, "global_batch_size": self.global_batch_size
        }  # fmt: skip


def advise(lengths: NDArray[np.int32], most: int | None = None) -> Advice | None:
    """The advice for rows of these lengths in tokens; None without rows.

    Args:
        lengths: of each row.
        most: how long a sequence the model takes.
    """
    if not len(lengths):
        return None
    fitting = [length for length in STEPS_OF_LENGTH if most is None or length <= most] or [most or STEPS_OF_LENGTH[0]]
    max_length = next((length for length in fitting if share_beyond(lengths, length) <= CUT_SHARE), fitting[-1])
    kept = np.minimum(lengths, max_length)
    filled = float(kept.mean()) / max_length
    packing = filled < FULL and len(lengths) > 1
    sequences = max(1, round(float(kept.sum()) / max_length)) if packing else len(lengths)
    batch = next((size for size in BATCHES if sequences / size >= FEWEST_STEPS), BATCHES[-1])
    return Advice(max_length, share_beyond(lengths, max_length), packing, filled, batch, max(1, -(-sequences // batch)))


def share_beyond(lengths: NDArray[np.int32], length: int) -> float:
    """The share of the rows that is longer."""
    return float((lengths > length).mean()) if len(lengths) else 0.0
