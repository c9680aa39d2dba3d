"""Iterable datasets: each worker has a part of the stream."""

import pytest
from datasets import DeadlyStream, Sharded, Stream


def flat(batches):
    return [n for batch in batches for n in batch.tolist()]


@pytest.mark.parametrize("data", [Stream, Sharded])
@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_each_sample_comes_once(loader, data, workers):
    batches = loader(data(101), batch_size=8, workers=workers)
    for _ in range(2):
        assert sorted(flat(batches)) == list(range(101))


@pytest.mark.parametrize("data", [Stream, Sharded])
def test_workers_take_turns(loader, data):
    batches = loader(data(20), batch_size=4, workers=2)
    got = [batch.tolist() for batch in batches]
    assert got == [[0, 2, 4, 6], [1, 3, 5, 7], [8, 10, 12, 14], [9, 11, 13, 15], [16, 18], [17, 19]]
    assert [batch.tolist() for batch in batches] == got


def test_short_batches_are_dropped_when_asked_for(loader):
    batches = loader(Stream(20), batch_size=4, workers=2, drop_last=True)
    assert [len(batch) for batch in batches] == [4] * 4


def test_uneven_streams_end_one_after_the_other(loader):
    batches = loader(Stream(3), batch_size=1, workers=4)
    assert sorted(flat(batches)) == [0, 1, 2]
    assert flat(loader(Stream(0), batch_size=1, workers=2)) == []


def test_unordered_streams_are_complete(loader):
    batches = loader(Stream(200), batch_size=4, workers=2, ordered=False)
    assert sorted(flat(batches)) == list(range(200))


def test_the_stream_is_the_same_when_workers_die(loader, tmp_path):
    quiet = flat(loader(Stream(200), batch_size=8, workers=2))
    data = DeadlyStream(200, tmp_path, once=[3, 50, 51, 120, 199])
    assert flat(loader(data, batch_size=8, workers=2, retries=3)) == quiet


class Names:
    """Iterates a set, whose order differs from process to process, as hashes do."""

    def __iter__(self):
        return iter({f"name {number}" for number in range(50)})


def test_each_item_of_a_set_comes_once(loader, method):
    batches = loader(Names(), 3, 3, start_method=method)
    names = [name for batch in batches for name in batch]
    assert sorted(names) == sorted(Names())
    assert names == [name for batch in batches for name in batch]


def test_a_set_is_no_dataset(loader):
    with pytest.raises(TypeError, match="a set has none: pass a list of its items"):
        loader({"a", "b"})


@pytest.mark.parametrize("taken", [0, 1, 5, 13])
def test_a_stream_goes_on_where_it_was(loader, taken):
    first = loader(Stream(100), batch_size=8, workers=2)
    reference = flat(first)
    iterator = iter(first)
    got = flat(next(iterator) for _ in range(taken))
    second = loader(Stream(100), batch_size=8, workers=2)
    first_state = first.state_dict()
    first_state["epoch"] = 0
    second.load_state_dict(first_state)
    assert got + flat(second) == reference
    assert flat(second) == reference


def test_a_state_for_another_number_of_workers_is_refused(loader):
    state = loader(Stream(100), batch_size=8, workers=2).state_dict()
    with pytest.raises(ValueError, match=r"workers 2.*3"):
        loader(Stream(100), batch_size=8, workers=3).load_state_dict(state)


def test_an_iterable_cannot_be_shuffled(loader):
    with pytest.raises(ValueError, match="iterable"):
        loader(Stream(100), shuffle=True)


def failing():
    yield 1
    yield 2
    raise ValueError("in the stream")


class Failing:
    def __iter__(self):
        return failing()


@pytest.mark.parametrize("workers", [0, 1])
def test_an_exception_in_a_stream_arrives(loader, workers):
    iterator = iter(loader(Failing(), batch_size=1, workers=workers))
    assert flat([next(iterator), next(iterator)]) == [1, 2]
    with pytest.raises(ValueError, match="in the stream"):
        next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)
