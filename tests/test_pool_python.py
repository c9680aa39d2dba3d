import ast
import copy
import dataclasses
import gc
import inspect
import pickle
import re
import threading

import ml_dtypes
import numpy as np
import pytest

import ropeway as rw
from ropeway import _status
from ropeway._arrays import address

WATCHDOG = 60
FIELDS = {"image": ((8, 3, 4, 4), "float32"), "label": ((16,), "float32")}


def publish(pool, count=1):
    for number in range(count):
        with pool.acquire(timeout=WATCHDOG) as slot:
            slot.meta = {"number": number}
            for name in slot.keys():  # noqa: SIM118
                slot[name] = number
            slot.publish()


# ---- making a pool -----------------------------------------------------------------------------


def test_shape_and_dtype_make_one_array():
    pool = rw.Pool(slots=2, shape=(5, 3), dtype="int32")
    with pool.acquire() as slot:
        assert (slot.array.shape, slot.array.dtype) == ((5, 3), np.int32)
        assert slot.keys() == ["array"]
        assert address(slot.array) % 64 == 0


def test_fields_make_arrays_by_name():
    pool = rw.Pool(2, fields={**FIELDS, "half": (4, ml_dtypes.bfloat16), "flag": ((), "?")})
    with pool.acquire() as slot:
        assert slot.keys() == ["image", "label", "half", "flag"]
        assert slot["image"].shape == (8, 3, 4, 4)
        assert slot["half"].dtype == ml_dtypes.bfloat16
        assert slot["flag"].shape == ()
        with pytest.raises(KeyError, match="image"):
            slot["nothing"]
        with pytest.raises(KeyError, match="array"):
            slot.array  # noqa: B018


def test_slots_without_fields_take_any_arrays():
    pool = rw.Pool(slots=2)
    with pool.acquire() as slot:
        assert slot.keys() == []
        slot.add("x", (2, 3), "M8[s]")[:] = 5
        slot.add("record", 4, [("a", "u1"), ("b", ">f8")])["b"] = 0.5
        slot.publish()
    with pool.take() as slot:
        assert slot["x"].dtype == "M8[s]"
        assert slot["x"].view("i8").tolist() == [[5] * 3] * 2
        assert slot["record"]["b"].tolist() == [0.5] * 4


MISTAKES = [
    ({"slots": 0}, ValueError, "slots must be at least 1, found 0"),
    ({"slots": "3"}, TypeError, "slots must be an int, found '3'"),
    ({"slots": 2.0}, TypeError, "slots must be an int, found 2.0"),
    ({"shape": 3}, TypeError, "shape and dtype together"),
    ({"dtype": "f4"}, TypeError, "shape and dtype together"),
    ({"shape": 3, "dtype": "f4", "fields": FIELDS}, TypeError, "either shape and dtype, or fields"),
    ({"shape": -3, "dtype": "f4"}, ValueError, "negative dimension: -3"),
    ({"shape": 3, "dtype": object}, TypeError, "object"),
    ({"fields": {}}, ValueError, "at least one array"),
    ({"fields": {"x": "f4"}}, TypeError, "field 'x' must be a tuple (shape, dtype), found 'f4'"),
    ({"fields": {"x": (3, object)}}, TypeError, "field 'x': dtype object"),
    ({"fields": {"x": ((3, -1), "f4")}}, ValueError, "field 'x': shape (3, -1)"),
    ({"fields": {3: (3, "f4")}}, TypeError, "name of a field must be a str"),
    ({"fields": {"": (3, "f4")}}, TypeError, "name of a field must be a str"),
    ({"stages": ("fill",)}, ValueError, "2 to 16 different names"),
    ({"stages": ("fill", "use", "fill")}, ValueError, "2 to 16 different names"),
    ({"stages": "fill"}, TypeError, "stages must be a tuple of names"),
    ({"stages": ("fill", 3)}, TypeError, "the name of a stage must be a str"),
    ({"name": ""}, ValueError, "name must be"),
    ({"name": "a/b"}, ValueError, "name must be"),
    ({"name": 3}, TypeError, "name must be a str"),
    ({"memory_limit": 0}, ValueError, "memory_limit must be at least 1"),
    ({"max_slots": 1}, ValueError, "max_slots must be at least 2, found 1"),
]


@pytest.mark.parametrize(("arguments", "error", "message"), MISTAKES)
def test_mistakes_are_named(arguments, error, message):
    with pytest.raises(error, match=re.escape(message)):
        rw.Pool(**{"slots": 2, **arguments})


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"fields": [("a", (1, "f4"))]}, "fields must map names"),
        ({"stages": None}, "stages must be a tuple of names, found None"),
        ({"memory_limit": 10**30}, "memory_limit must be at most"),
        ({"slots": 2**70}, "slots must be at most"),
        ({"max_slots": "2"}, "max_slots must be an int, found '2'"),
    ],
)
def test_what_cannot_be_is_refused_by_its_name(wrong, text):
    with pytest.raises((TypeError, ValueError), match=text):
        rw.Pool(**{"slots": 1, **wrong})


def test_a_lease_knows_its_arrays():
    pool = rw.Pool(slots=1, fields={"image": ((2,), "f4"), "label": ((), "i8")})
    with pool.acquire() as slot:
        assert list(slot) == slot.keys() == ["image", "label"]
        assert "image" in slot
        assert "imago" not in slot
        assert 0 not in slot
        slot.publish()
    with pool.take() as slot:
        assert list(slot) == ["image", "label"]
        assert "label" in slot
    with pytest.raises(ValueError, match="ended"):
        "label" in slot  # noqa: B015


@pytest.mark.parametrize("dtype", [object, [("a", "f4"), ("b", object)]])
def test_python_objects_are_refused_at_the_door(dtype):
    pool = rw.Pool(2)
    before = pool.status()
    with pool.acquire() as slot, pytest.raises(TypeError, match="object"):
        slot.add("x", 3, dtype)
    assert pool.status().published == before.published
    assert all(slot.state == "idle" for slot in pool.status().slots)


# ---- the same pool elsewhere -------------------------------------------------------------------


@pytest.mark.parametrize("again", [lambda p: pickle.loads(pickle.dumps(p)), copy.deepcopy])
def test_a_pool_pickles_as_a_handle(again):
    pool = rw.Pool(2, fields=FIELDS)
    assert len(pickle.dumps(pool)) < 1024
    publish(pool)
    other = again(pool)
    assert (type(other), other.id, other.stages) == (rw.Pool, pool.id, pool.stages)
    with other.take(timeout=WATCHDOG) as slot:
        assert slot.meta == {"number": 0}
    assert len([m for m in pool.status().members if m.alive]) == 1


def test_subclasses_stay_subclasses():
    pool = Special(2, shape=3, dtype="f4")
    other = pickle.loads(pickle.dumps(pool))
    assert type(other) is Special
    assert other.id == pool.id


class Special(rw.Pool):
    pass


def test_a_named_pool_is_found():
    pool = rw.Pool(2, shape=3, dtype="f4", name="test.pool-python")
    other = rw.Pool.open("test.pool-python")
    assert (other.id, other.name) == (pool.id, "test.pool-python")
    with pytest.raises(rw.Gone, match="nowhere"):
        rw.Pool.open("nowhere")


def consume(pool, expected):
    total = 0
    for slot in pool:
        total += slot["image"].sum() / slot["image"].size
        assert not slot["image"].flags.writeable
        assert slot.meta["number"] == slot["label"][0]
    assert total == expected


def test_a_child_takes_what_its_parent_publishes(child):
    pool = rw.Pool(2, fields=FIELDS)
    with child(consume, pool, sum(range(20))):
        publish(pool, 20)
        pool.close()
    assert pool.status().published == 20


def keep_one(pool):
    global kept
    kept = pool.take(timeout=WATCHDOG)


def test_a_child_that_ends_normally_has_read_what_it_holds(child, eventually):
    pool = rw.Pool(2, shape=2, dtype="i4")
    publish(pool)
    with child(keep_one, pool):
        pass
    assert eventually(
        lambda: not pool.sweep() and all(s.state == "idle" for s in pool.status().slots)
    )
    with pytest.raises(rw.Timeout):
        pool.take(timeout=0)
    assert pool.status().lost == ()
    assert pool.status().deaths == 0


# ---- iterating ---------------------------------------------------------------------------------


def test_iterating_ends_when_the_pool_is_closed_and_drained():
    pool = rw.Pool(3, shape=2, dtype="i4")
    publish(pool, 3)
    pool.close()
    seen = []
    for slot in pool:
        held = [s for s in pool.status().slots if s.state == "held-read"]
        assert len(held) == 1
        seen.append(int(slot.array[1]))
    assert seen == [0, 1, 2]
    assert list(pool) == []


def test_iterating_works_with_one_slot():
    pool = rw.Pool(1, shape=2, dtype="i4")
    thread = threading.Thread(target=publish, args=(pool, 20))
    thread.start()
    numbers = (slot.meta["number"] for slot in pool)
    assert [next(numbers) for _ in range(20)] == list(range(20))
    thread.join(WATCHDOG)


def test_iterating_over_a_slot_in_use_says_so():
    pool = rw.Pool(2, fields=FIELDS)
    publish(pool, 2)
    iterator = iter(pool)
    slot = next(iterator)
    image = slot["image"]
    with pytest.raises(rw.InUse, match="1 view"):
        next(iterator)
    assert image[0, 0, 0, 0] == 0
    del image
    slot.release()
    assert next(iter(pool)).meta == {"number": 1}


def test_a_slot_stays_with_who_left_the_loop():
    pool = rw.Pool(2, shape=2, dtype="i4")
    publish(pool, 2)
    slot = next(iter(pool))
    gc.collect()
    assert not slot.ended
    assert slot.array.tolist() == [0, 0]


# ---- the rest ----------------------------------------------------------------------------------


def test_a_ring_is_all_slots_of_a_field():
    pool = rw.Pool(3, fields=FIELDS)
    ring = pool.ring("label")
    assert (ring.shape, ring.dtype, ring.flags.c_contiguous) == ((3, 16), np.float32, True)
    publish(pool, 3)
    assert sorted(ring[:, 3].tolist()) == [0, 1, 2]
    with pool.take() as slot:
        assert address(slot["label"]) == address(ring[slot.index])
    assert rw.Pool(2, shape=(4, 64), dtype="u1").ring().shape == (2, 4, 64)
    with pytest.raises(KeyError, match=r"no field 'x'; it has \['image', 'label'\]"):
        pool.ring("x")
    with pytest.raises(KeyError, match="no field None"):
        pool.ring()


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (((8,), "f4"), "takes 32 bytes of each slot.*with 16 instead of 8 along the first axis"),
        (((40, 3), "f4"), "takes 480 bytes .*with 32 or 48 instead of 40"),
        (((), "f8"), "takes 8 bytes of each slot, and only multiples of 64 are packed$"),
        (((0, 3), "f8"), "takes 0 bytes of each slot.*with 8 instead of 0"),
    ],
)
def test_a_ring_that_cannot_be_says_which_sizes_could(field, message):
    pool = rw.Pool(2, fields={"fits": (64, "u1"), "label": field})
    with pytest.raises(ValueError, match=f"field 'label' {message}"):
        pool.ring("fits")


def test_the_block_closes_the_pool():
    with rw.Pool(2, shape=2, dtype="i4") as pool:
        publish(pool)
        assert not pool.closed
        assert "open, fill -> use, array: <i4 (2,)" in repr(pool)
    assert pool.closed
    assert "closed" in repr(pool)
    with pytest.raises(rw.Closed):
        pool.acquire()
    assert [slot.meta for slot in pool] == [{"number": 0}]


def test_status_is_a_frozen_value():
    pool = rw.Pool(2, shape=1000, dtype="i4", memory_limit=1 << 20)
    with pool.acquire() as slot:
        status = pool.status()
        held = status.slots[slot.index]
        assert (held.state, held.stage) == ("held-write", "fill")
        assert held.pid == status.members[0].pid
        assert status.members[0].alive
        assert (status.state, status.published, status.lost) == ("open", 0, ())
        assert status.memory_limit == 1 << 20
        assert status.committed >= 4000
    with pytest.raises(dataclasses.FrozenInstanceError):
        status.state = "closed"


def test_every_field_of_the_status_is_documented():
    classes = {
        node.name: node.body
        for node in ast.parse(inspect.getsource(_status)).body
        if isinstance(node, ast.ClassDef)
    }
    statuses = rw.PoolStatus, rw.SlotStatus, rw.MemberStatus, rw.LostSlot
    for cls in (*statuses, rw.ExportStatus, rw.SessionStatus):
        fields = classes[cls.__name__][1:]
        for field, text in zip(fields[::2], fields[1::2], strict=False):
            assert isinstance(field, ast.AnnAssign)
            assert isinstance(text, ast.Expr), f"{cls.__name__}.{field.target.id}"


def test_the_public_names_are_these():
    assert set(rw.__all__) == {
        *("Array", "Pool", "Queue", "ReadLease", "WriteLease", "Pointer"),
        *("empty", "zeros", "share", "asarray", "status"),
        *("RopewayError", "Timeout", "Closed", "InUse", "OutOfMemory", "PeerDied", "WorkerError"),
        *("Incompatible", "Gone", "Invalid", "NoSuch"),
        *("PoolStatus", "SlotStatus", "ExportStatus", "MemberStatus", "LostSlot", "SessionStatus"),
        *("Loader", "LoaderStats", "WorkerStats", "WorkerEnding", "WorkerInfo", "worker_info"),
        *("SharedDict", "SharedList", "__version__"),
    }
    assert all(hasattr(rw, name) for name in rw.__all__)


def test_every_error_is_a_ropeway_error_and_what_python_has():
    assert issubclass(rw.Timeout, TimeoutError)
    assert issubclass(rw.InUse, BufferError)
    assert issubclass(rw.OutOfMemory, MemoryError)
    assert issubclass(rw.Incompatible, ValueError)
    assert issubclass(rw.Gone, LookupError)
    assert issubclass(rw.PeerDied, rw.Closed)
    errors = [e for e in vars(rw).values() if isinstance(e, type) and issubclass(e, Exception)]
    assert all(issubclass(error, rw.RopewayError) for error in errors)
    assert str(rw.NoSuch("no field 'x'")) == "no field 'x'"


def test_a_loop_with_the_consumer_in_another_thread_gets_everything():
    pool = rw.Pool(2, shape=2, dtype="i4")
    seen = []
    thread = threading.Thread(target=lambda: seen.extend(s.meta["number"] for s in pool))
    thread.start()
    publish(pool, 50)
    pool.close()
    thread.join(WATCHDOG)
    assert seen == list(range(50))
