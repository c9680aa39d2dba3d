import gc
import math
import pickle

import numpy as np
import pytest

import ropeway as rw

ITEMS = [
    "text",
    "",
    "ünïcode \ud800",
    b"",
    b"bytes",
    0,
    -5,
    1 << 62,
    1 << 80,
    0.5,
    math.inf,
    True,
    False,
    None,
    (1, "two"),
    {"a": [1]},
    np.arange(5),
    np.zeros((3, 0), "f4"),
    np.array(7, "M8[s]"),
    np.float32(2),
    1j,
]


def test_items_come_out_as_they_went_in():
    shared = rw.SharedList(ITEMS)
    assert len(shared) == len(ITEMS)
    assert shared == ITEMS
    assert shared == ITEMS
    assert [type(item) for item in shared] == [type(item) for item in ITEMS]
    for one, two in zip(shared, ITEMS, strict=True):
        if isinstance(two, np.ndarray):
            assert one.dtype == two.dtype
            assert one.shape == two.shape
            assert not one.flags.writeable
            assert one.__array_interface__["data"][0] % 64 == 0 or not one.size


def test_a_list_has_the_manners_of_a_sequence():
    shared = rw.SharedList(f"n{k}" for k in range(100))
    assert shared[0] == "n0"
    assert shared[-1] == "n99"
    assert shared[np.int64(3)] == "n3"
    assert list(shared[10:20:3]) == ["n10", "n13", "n16", "n19"]
    assert list(shared[::-1][:2]) == ["n99", "n98"]
    assert shared[10:][5:][0] == "n15"
    assert "n7" in shared
    assert "x" not in shared
    assert shared.index("n42") == 42
    assert shared.count("n1") == 1
    assert next(reversed(shared)) == "n99"
    assert shared != ["n0"]
    assert shared != 5
    assert rw.SharedList() == []
    with pytest.raises(IndexError, match=r"index 100 .* length 100"):
        shared[100]
    with pytest.raises(TypeError):
        shared[0] = "x"
    with pytest.raises(TypeError):
        hash(shared)
    assert repr(shared).startswith("SharedList(['n0', 'n1'")


def test_an_item_that_cannot_be_pickled_raises():
    with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
        rw.SharedList([1, lambda: 2])


def test_a_list_pickles_as_a_handle_and_stays_small_beyond():
    shared = rw.SharedList(f"a somewhat longer path/{k:09}.jpg" for k in range(20_000))
    assert len(pickle.dumps(shared)) < 2048
    copy = pickle.loads(pickle.dumps(shared[5:]))
    assert copy[0] == shared[5]
    assert shared.nbytes < 20_000 * 60


def read(shared, mapping, queue):
    queue.put([shared[k] for k in (0, 3, -1)])
    queue.put([mapping["n3"], mapping[(1, "a")], "x" in mapping])


def test_other_processes_read_the_same(child):
    shared = rw.SharedList(range(10))
    mapping = rw.SharedDict({f"n{k}": k for k in range(100)} | {(1, "a"): np.arange(3)})
    queue = rw.Queue()
    with child(read, shared, mapping, queue):
        assert queue.get(timeout=60) == [0, 3, 9]
        number, array, found = queue.get(timeout=60)
        assert number == 3
        assert array.tolist() == [0, 1, 2]
        assert not found
    queue.close()


def test_a_dict_has_the_manners_of_a_mapping():
    pairs = {f"k{n}": n for n in range(1000)} | {
        1: "one",
        2.5: "x",
        None: 0,
        b"b": 1,
        (1, ("a",)): 2,
    }
    shared = rw.SharedDict(pairs)
    assert dict(shared) == pairs
    assert list(shared) == list(pairs)
    assert len(shared) == len(pairs)
    assert shared == pairs
    assert shared.get("none", 5) == 5
    assert shared[1.0] == "one"
    assert shared[True] == "one"
    assert 2 not in shared
    assert shared["k7"] == 7
    assert "k1000" not in shared
    assert [] not in shared
    assert list(shared.items())[:2] == [("k0", 0), ("k1", 1)]
    with pytest.raises(KeyError, match="gone"):
        shared["gone"]
    with pytest.raises(TypeError, match="key of a SharedDict"):
        rw.SharedDict({frozenset(): 1})
    assert rw.SharedDict() == {}


def test_memory_goes_with_the_last_reference():
    gc.collect()
    before = rw.status().arrays
    shared = rw.SharedList(range(1000))
    view = rw.SharedList([np.arange(1000)])[0]
    tail = shared[990:]
    del shared
    assert list(tail) == list(range(990, 1000))
    assert view[-1] == 999
    del tail, view
    gc.collect()
    assert rw.status().arrays == before
