"""Exceptions of the dataset: they arrive, and the loader goes on."""

import threading
import traceback

import pytest
from datasets import Failing, Made, Numbers, TwoArguments, Unreadable

import ropeway as rw


def numbers(batches):
    return [n for batch in batches for n in batch["number"].tolist()]


class Locked(Exception):
    def __init__(self):
        super().__init__("locked")
        self.lock = threading.Lock()


class Odd(BaseException):
    pass


def unpicklable(index):
    return {"number": index, "thing": Refusing()} if index == 5 else {"number": index, "thing": 7j}


class Refusing:
    def __reduce__(self):
        raise OSError("not to be pickled")


def local(index):
    class Local(Exception):
        pass

    if index == 5:
        raise Local("of a function")
    return {"number": index}


def stopped(index):
    if index == 5:
        raise StopIteration("early")
    return {"number": index}


def two(index):
    if index == 5:
        raise TwoArguments(1, 2)
    return {"number": index}


CASES = [
    (Failing(8, ValueError("bad\nvalue")), ValueError, "bad\nvalue"),
    (Failing(8, KeyError("one\ntwo\nthree")), KeyError, "one\ntwo\nthree"),
    (Made(8, two), rw.WorkerError, "1 and 2"),
    (Failing(8, SystemExit(3)), rw.WorkerError, "SystemExit"),
    (Failing(8, Odd("odd")), rw.WorkerError, "Odd"),
    (Failing(8, KeyboardInterrupt()), rw.WorkerError, "KeyboardInterrupt"),
    (Made(8, local), rw.WorkerError, "of a function"),
    (Made(8, unpicklable), (OSError, rw.RopewayError), ""),
    (Made(8, stopped), RuntimeError, "early"),
]


@pytest.mark.parametrize(("data", "kind", "text"), CASES, ids=range(len(CASES)))
def test_an_exception_arrives_with_its_story_and_the_loader_goes_on(loader, data, kind, text):
    batches = loader(data, batch_size=1, workers=1)
    iterator = iter(batches)
    assert numbers(next(iterator) for _ in range(5)) == list(range(5))
    with pytest.raises(kind) as caught:
        next(iterator)
    story = "".join(traceback.format_exception(caught.value))
    for part in (text, "worker 0", "sample 5", "Traceback", "process"):
        assert part in story
    assert numbers(iterator) == [6, 7]
    del caught


def test_an_exception_that_holds_a_lock_arrives(loader):
    batches = loader(Failing(8, None), batch_size=1, workers=1, start_method="fork")
    batches.dataset.error = Locked()
    iterator = iter(batches)
    assert numbers(next(iterator) for _ in range(5)) == list(range(5))
    with pytest.raises(rw.WorkerError, match="Locked"):
        next(iterator)


@pytest.mark.parametrize("ordered", [True, False])
def test_a_batch_that_can_t_be_read_is_an_error_and_the_rest_comes(loader, ordered):
    batches = loader(Numbers(16), 4, 2, collate=unreadable, ordered=ordered, timeout=10)
    iterator, got = iter(batches), []
    with pytest.raises(ValueError, match="can't be read"):
        got.extend(batch[0] for batch in iterator)
    got += [batch[0] for batch in iterator]
    assert sorted(got) == [0, 4, 12]


def unreadable(samples):
    first = samples[0]["number"]
    return first, Unreadable(first if first == 8 else None)


def test_every_batch_may_fail(loader):
    batches = loader(Failing(20, ValueError("no"), bad=range(20)), batch_size=2, workers=2)
    iterator, failures = iter(batches), 0
    while True:
        try:
            next(iterator)
        except ValueError:
            failures += 1
        except StopIteration:
            break
    assert failures == 10


class Unloadable(Numbers):
    def __setstate__(self, state):
        raise RuntimeError("can't be loaded here")


@pytest.mark.parametrize("method", [None, "spawn"])
def test_a_dataset_that_cannot_be_loaded_is_an_error(loader, method):
    batches = loader(Unloadable(20), batch_size=2, workers=2, start_method=method)
    with pytest.raises(RuntimeError, match="can't be loaded here"):
        next(iter(batches))


def test_a_dataset_that_cannot_be_pickled_is_an_error(loader):
    batches = loader(Failing(8, threading.Lock()), workers=1)
    with pytest.raises(TypeError, match=r"Failing.*start_method"):
        iter(batches)


def test_without_workers_exceptions_are_as_they_are(loader):
    error = ValueError("as it is")
    iterator = iter(loader(Failing(8, error), batch_size=1, workers=0))
    assert numbers(next(iterator) for _ in range(5)) == list(range(5))
    with pytest.raises(ValueError, match="as it is") as caught:
        next(iterator)
    assert caught.value is error
    assert numbers(iterator) == [6, 7]
