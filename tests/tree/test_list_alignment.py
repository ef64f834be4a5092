"""The window between the equal ends of two lists, against a plain count of equal items."""

from __future__ import annotations

import random

from merge_helpers import trees

from holdfast.tree.list_alignment import find_window


def test_window_is_that_of_a_plain_comparison() -> None:
    """Also where whole groups are shared, and where repeated items could be counted at either end."""
    chance = random.Random(7)
    for _ in range(400):
        base = [chance.randrange(3) for _ in range(chance.choice((0, 5, 33, 64, 100, 1100)))]
        new = list(base)
        for _ in range(chance.randrange(4)):
            at = chance.randrange(len(new) + 1) if chance.random() < 0.6 else len(new)
            new[at : at + chance.randrange(3)] = [chance.randrange(3) for _ in range(chance.randrange(3))]
        old, made, _ = trees(base, new, base)
        most = min(len(base), len(new))
        start = next((at for at in range(most) if base[at] != new[at]), most)
        end = next((at for at in range(most - start) if base[-1 - at] != new[-1 - at]), most - start)
        assert find_window(old, made) == (range(start, len(base) - end), range(start, len(new) - end))
