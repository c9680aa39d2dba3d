"""How many arrays a second does one process hand to another?"""

from itertools import repeat
from time import perf_counter

from .clock import turns_for
from .pair import Pair, paired
from .placement import Cores


def measure(
    contestant: str, cores: Cores, nbytes: int, slots: int, seconds: float
) -> dict[str, float]:
    """Hands arrays over for about `seconds`, after having checked that they arrive whole."""
    with paired(contestant, cores, nbytes, slots, round_trip=False) as pair:
        numbers = [1 + turn % 250 for turn in range(2 * slots + 1)]
        with pair.far("produce", numbers):
            pair.peer.consume(numbers)
        turns = turns_for(seconds, lambda turns: hand_over(pair, turns))
        took = hand_over(pair, turns)
    return {"turns": turns, "per_s": turns / took}


def hand_over(pair: Pair, turns: int) -> float:
    """Hands `turns` arrays over and returns how long that took, once the first ones had arrived."""
    head = pair.peer.slots
    with pair.far("produce", head + turns):
        pair.peer.consume(repeat(None, head))
        start = perf_counter()
        pair.peer.consume(repeat(None, turns))
        return perf_counter() - start
