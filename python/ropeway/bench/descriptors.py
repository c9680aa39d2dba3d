"""Does a hand-off cost a descriptor or a mapping?"""

import resource

from .oneway import hand_over
from .pair import Census, paired
from .placement import Cores

LIMIT = 64
"""What RLIMIT_NOFILE is set to, for both processes."""

WARM = 1000


def measure(
    contestant: str, cores: Cores, nbytes: int, slots: int, turns: int
) -> dict[str, object]:
    """Hands `turns` arrays over under `LIMIT`; counts both processes before and after."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, LIMIT))
    with paired(contestant, cores, nbytes, slots, round_trip=False) as pair:
        hand_over(pair, min(WARM, turns))
        near_before, far_before = pair.census()
        took = hand_over(pair, turns)
        near_after, far_after = pair.census()
    return {
        "turns": turns,
        "per_s": turns / took,
        "near": near_after,
        "far": far_after,
        "new_near": _new(near_before, near_after),
        "new_far": _new(far_before, far_after),
    }


def _new(before: Census, after: Census) -> Census:
    return {what: after[what] - before[what] for what in after}
