"""How long does a filled array take to another process and back?"""

from .clock import GROUP, Stamps, turns_for
from .pair import Pair, paired
from .placement import Cores

CHECKED = [3, 141, 59]


def measure(contestant: str, cores: Cores, nbytes: int, seconds: float) -> dict[str, float]:
    """Sends an array round for about `seconds`, after having checked that it arrives whole."""
    with paired(contestant, cores, nbytes, slots=1, round_trip=True) as pair:
        with pair.far("echo", CHECKED):
            pair.peer.trips(CHECKED)
        turns = turns_for(seconds, lambda turns: _trips(pair, Stamps(turns), turns))
        group = GROUP if turns >= 20 * GROUP else 1
        stamps = Stamps(group)
        _trips(pair, stamps, turns - turns % group)
    micros = stamps.micros()
    return {
        "turns": len(micros) * group,
        "p50_us": micros[len(micros) // 2],
        "p99_us": micros[int(0.99 * (len(micros) - 1))],
        "min_us": micros[0],
    }


def _trips(pair: Pair, stamps: Stamps, turns: int) -> None:
    with pair.far("echo", turns):
        pair.peer.trips(stamps.numbers(turns))
        stamps.stop()
