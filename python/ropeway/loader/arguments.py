"""What a loader can be made of: checks of its arguments, and of a state that is given to it."""

import multiprocessing
import operator
import sys
from typing import Any

STATE_VERSION = 1


def check(loader: Any) -> None:
    """Raises TypeError or ValueError for arguments of a loader that don't go together."""
    if loader.sampler is not None and loader.shuffle:
        raise ValueError("a loader takes either shuffle=True or a sampler, found both")
    if loader.batch_sampler is not None and (
        loader.sampler is not None or loader.shuffle or loader.drop_last
    ):
        raise ValueError("a batch_sampler decides alone: leave out sampler, shuffle and drop_last")
    for name in ("sampler", "batch_sampler"):
        given = getattr(loader, name)
        if given is not None and not hasattr(given, "__iter__"):
            raise TypeError(f"a {name} is iterable, found {given!r}")
    if loader.batch_size is None and loader.drop_last:
        raise ValueError("drop_last needs batches, and batch_size=None makes none")
    if loader._iterable and (
        loader.shuffle or loader.sampler is not None or loader.batch_sampler is not None
    ):
        raise ValueError(
            "an iterable dataset has no keys to shuffle or sample: shuffle in the dataset"
        )
    if loader.collate is not None and loader.collate != "list" and not callable(loader.collate):
        raise TypeError(f'collate must be a function or "list", found {loader.collate!r}')
    if loader.timeout is not None and not seconds(loader.timeout) > 0:
        raise ValueError(f"timeout must be a number of seconds above 0, found {loader.timeout}")


def check_state(state: Any) -> None:
    """Raises ValueError for what no loader's `state_dict` has given."""
    if not isinstance(state, dict):
        raise ValueError(f"a loader's state is a dict, found {state!r}")
    if state.get("version") != STATE_VERSION:
        raise ValueError(f"the state has version {state.get('version')!r}, not {STATE_VERSION}")
    for name, kind in (("seed", int), ("epoch", int), ("position", dict)):
        if not isinstance(state.get(name), kind):
            raise ValueError(
                f"the state's {name!r} is a loader's {kind.__name__}, found {state.get(name)!r}"
            )
    counts = (state["epoch"], state["position"].get("batch", 0))
    if not all(isinstance(count, int) and count >= 0 for count in counts):
        raise ValueError(f"the state's epoch and batch count from 0, found {counts}")


def count(what: str, number: Any, least: int, most: int | None = None) -> int:
    """A whole number from `least` to `most`; raises TypeError or ValueError for others."""
    found = index(what, number)
    if found < least:
        raise ValueError(f"{what} must be at least {least}, found {found}")
    if most is not None and found > most:
        raise ValueError(f"{what} must be at most {most}, found {found}")
    return found


def index(what: str, number: Any) -> int:
    """A whole number; raises TypeError for what isn't one."""
    try:
        return operator.index(number)
    except TypeError:
        raise TypeError(f"{what} must be an int, found {number!r}") from None


def seconds(timeout: Any) -> float:
    """A time-out; raises TypeError for what isn't a number."""
    try:
        return float(timeout)
    except (TypeError, ValueError):
        raise TypeError(f"timeout must be a number of seconds, found {timeout!r}") from None


def method(name: str | None) -> str:
    """How workers are started; raises ValueError if there is no such way."""
    if name is None:
        return "zygote"
    methods = multiprocessing.get_all_start_methods()
    if name not in methods:
        raise ValueError(f"start_method must be None or one of {methods}, found {name!r}")
    return name


def is_iterable(dataset: Any) -> bool:
    """Whether a dataset is read by iterating; raises TypeError if it can't be read at all."""
    if isinstance(dataset, set | frozenset):
        raise TypeError(
            f"a dataset has an order that other processes find again, and a "
            f"{type(dataset).__name__} has none: pass a list of its items, sorted"
        )
    torch = sys.modules.get("torch.utils.data")
    if torch is not None and isinstance(dataset, torch.IterableDataset):
        return True
    if hasattr(dataset, "__getitem__"):
        return False
    if hasattr(dataset, "__iter__"):
        return True
    raise TypeError(
        f"a dataset has __getitem__ and __len__, or __iter__; found a {type(dataset).__name__} "
        "with neither"
    )
