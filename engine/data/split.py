"""Which rows are kept for evaluation: seeded, whole groups at a time, in the same share from each source."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence


def held_out(groups: Sequence[str], sources: Sequence[str], share: float, seed: int) -> list[bool]:
    """For each row, whether it is kept for evaluation.

    The choice hangs on the rows' own content and the seed, not on their order, so that a row keeps its side when
    others are added.

    Args:
        groups: rows with one key go to one side (one prompt, one conversation).
        sources: where rows are from; each gives its share.
        share: of all rows; 1 or more is a number of rows.
        seed: of the choice.
    """
    total = len(groups)
    wanted_share = share if share < 1 else min(1.0, share / max(1, total))
    source_of: dict[str, str] = {}
    rows_of: dict[str, list[int]] = defaultdict(list)
    for row, (group, source) in enumerate(zip(groups, sources, strict=True)):
        source_of.setdefault(group, source)  # of a group over several sources the first one's
        rows_of[group].append(row)
    members: dict[str, list[str]] = defaultdict(list)
    for group, source in source_of.items():
        members[source].append(group)
    result = [False] * total
    for source in sorted(members):
        ranked = sorted(members[source], key=lambda group: _rank(group, seed))
        rows = sum(len(rows_of[group]) for group in ranked)
        wanted = round(wanted_share * rows)
        for group in ranked:
            size = len(rows_of[group])
            if wanted >= size:
                wanted -= size
                for row in rows_of[group]:
                    result[row] = True
    if share and total > 1 and not any(result):  # so few rows that every source's share was rounded away
        group = min(rows_of, key=lambda group: (len(rows_of[group]), _rank(group, seed)))
        if len(rows_of[group]) < total:
            for row in rows_of[group]:
                result[row] = True
    return result


def _rank(group: str, seed: int) -> bytes:
    return hashlib.blake2b(group.encode("utf-8", "replace"), digest_size=16, salt=seed.to_bytes(8, "little")).digest()
