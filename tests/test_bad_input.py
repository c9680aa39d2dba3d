"""What can't be: a sentence that names it, what was expected, what was found; the pool goes on."""

import builtins
import gc
import math
import os
import pickle
import queue
import threading

import numpy as np
import pytest

import ropeway as rw

HUGE = 2**62
RECURSIVE = []
RECURSIVE.append(RECURSIVE)
DEEP = None
for _ in range(100_000):
    DEEP = [DEEP]


class Bench:
    """A pool with fields, one without, and a queue: they are well whatever is done to them."""

    def __init__(self):
        self.pool = rw.Pool(2, fields={"x": ((4,), "f4"), "y": ((2,), "i8")})
        self.loose = rw.Pool(2)
        self.queue = rw.Queue(2)

    def published(self):
        with self.pool.acquire(timeout=0) as slot:
            slot["x"] = slot["y"] = 1
            slot.publish()
        return self.pool.take(timeout=0)

    def check(self):
        """Every slot can be filled and taken, and none is held."""
        for pool in (self.pool, self.loose):
            for lease in [pool.acquire(timeout=0) for _ in range(2)]:
                with lease:
                    if pool is self.loose:
                        lease.add("x", 4, "f4")
                    lease["x"] = 7
                    lease.publish()
            for _ in range(2):
                with pool.take(timeout=0) as lease:
                    assert (lease["x"] == 7).all()
        self.queue.put(np.arange(3), timeout=0)
        assert self.queue.get(timeout=0).sum() == 3
        gc.collect()
        for each in (self.pool, self.loose, self.queue):
            for slot in each.status().slots:
                assert (slot.stage, slot.state) == ("fill", "idle")


@pytest.fixture
def bench():
    bench = Bench()
    yield bench
    bench.check()
    vars(bench).clear()  # pytest keeps the fixture itself for a while


def table(text):
    """Cases from lines of `call | exception | words of its message`, by the call."""
    cases = [[part.strip() for part in line.split("|")] for line in text.strip().splitlines()]
    return pytest.mark.parametrize(
        ("call", "kind", "words"), [pytest.param(*case, id=case[0]) for case in cases]
    )


def refused(call, kind, words, **names):
    names |= {"rw": rw, "np": np, "math": math, "os": os, "HUGE": HUGE}
    names |= {"RECURSIVE": RECURSIVE, "DEEP": DEEP, "pickle": pickle, "threading": threading}
    known = {**vars(rw), "Empty": queue.Empty, "Full": queue.Full}
    with pytest.raises(known.get(kind) or getattr(builtins, kind)) as caught:
        eval(call, names)
    for word in words.split("..."):
        assert word in str(caught.value), str(caught.value)


@table("""
rw.Pool(0, 4, "f4") | ValueError | slots must be at least 1, found 0
rw.Pool(-1, 4, "f4") | ValueError | slots must be at least 1, found -1
rw.Pool(1.5, 4, "f4") | TypeError | slots must be an int, found 1.5
rw.Pool("2", 4, "f4") | TypeError | slots must be an int, found '2'
rw.Pool(np.array([2]), 4, "f4") | TypeError | slots must be an int, found array([2])
rw.Pool(65_537, 4, "f4") | Invalid | 1 to 65536 slots, found 65537
rw.Pool(2**70, 4, "f4") | ValueError | slots must be at most...found 1180591620717411303424
rw.Pool(2, 4, "f4", max_slots=1) | ValueError | max_slots must be at least 2, found 1
rw.Pool(1, 4) | TypeError | shape and dtype together
rw.Pool(1, dtype="f4") | TypeError | shape and dtype together
rw.Pool(1, 4, "f4", fields={"a": (4, "f4")}) | TypeError | either shape and dtype, or fields
rw.Pool(1, 4, "f4", memory_limit=0) | ValueError | memory_limit must be at least 1, found 0
rw.Pool(1, 4, "f4", memory_limit="1G") | TypeError | memory_limit must be an int, found '1G'
rw.Pool(1, 4, "f4", memory_limit=math.nan) | TypeError | memory_limit must be an int, found nan
rw.Pool(1, 4, "f4", memory_limit=1) | OutOfMemory | 4096 bytes, memory_limit is 1
rw.Pool(1, 4, "f4", name=7) | TypeError | name must be a str, found 7
rw.Pool(1, 4, "f4", name="a/b") | ValueError | name must be 1 to 64 letters...found 'a/b'
rw.Pool(1, 4, "f4", name="a\\0") | ValueError | name must be 1 to 64 letters
rw.Pool(1, 4, "f4", name="x" * 65) | ValueError | name must be 1 to 64 letters
rw.Pool(1, 4, "f4", stages="fill") | TypeError | stages must be a tuple of names, found 'fill'
rw.Pool(1, 4, "f4", stages=("fill",)) | ValueError | stages must be 2 to 16 different names
rw.Pool(1, 4, "f4", stages=("a", "a")) | ValueError | stages must be 2 to 16 different names
rw.Pool(1, 4, "f4", stages=("a", 1)) | TypeError | the name of a stage must be a str...found 1
rw.Pool(1, 4, "f4", stages=("a", "\\ud800")) | ValueError | a stage must be text that UTF-8
rw.Pool(1, fields={}) | ValueError | fields must name at least one array
rw.Pool(1, fields=[("a", 4, "f4")]) | TypeError | fields must map names to (shape, dtype), found [(
rw.Pool(1, fields={"a": "f4"}) | TypeError | field 'a' must be a tuple (shape, dtype), found 'f4'
rw.Pool(1, fields={"a": ("f4", 4)}) | TypeError | field 'a': shape must be an int...found 'f4'
rw.Pool(1, fields={"a": (4, "f4", 1)}) | TypeError | field 'a' must be a tuple...found (4
rw.Pool(1, fields={1: (4, "f4")}) | TypeError | the name of a field must be a str...found 1
rw.Pool(1, fields={"": (4, "f4")}) | TypeError | the name of a field must be a str...found ''
rw.Pool(1, fields={"\\ud800": (4, "f4")}) | ValueError | the name of a field must be text that UTF-8
rw.Pool(1, fields={"a": (4, object)}) | TypeError | field 'a': dtype object holds Python objects
rw.Pool(1, fields={"a": (-4, "f4")}) | ValueError | field 'a': shape (-4,) has a negative
rw.Pool(1, fields={"a": (HUGE, "f8")}) | ValueError | field 'a': an array of shape (46116
rw.Pool.open(None) | TypeError | the name of a pool must be a str...found None
rw.Pool.open("") | TypeError | the name of a pool must be a str...found ''
rw.Pool.open("\\ud800") | ValueError | the name of a pool must be text that UTF-8
rw.Pool.open("nobody") | Gone | no pool is named "nobody"
rw.Pool() | TypeError | slots
""")
def test_a_pool_that_cannot_be_is_refused(call, kind, words):
    refused(call, kind, words)


@table("""
rw.empty(-1) | ValueError | shape (-1,) has a negative dimension: -1
rw.empty((2, -3)) | ValueError | shape (2, -3) has a negative dimension: -3
rw.empty(1.0) | TypeError | shape must be an int or a tuple of ints, found 1.0 (float)
rw.empty("3") | TypeError | shape must be an int or a tuple of ints, found '3' (str)
rw.empty(b"ab") | TypeError | shape must be an int or a tuple of ints, found b'ab' (bytes)
rw.empty({2, 3}) | TypeError | shape must be an int or a tuple of ints, found {2, 3} (set)
rw.empty({}) | TypeError | shape must be an int or a tuple of ints, found {} (dict)
rw.empty(iter([2])) | TypeError | shape must be an int or a tuple of ints, found <list_iterator
rw.empty(None) | TypeError | shape must be an int or a tuple of ints, found None
rw.empty([[2]]) | TypeError | shape must be an int or a tuple of ints, found [[2]]
rw.empty(np.float32(3)) | TypeError | shape must be an int...found np.float32(3.0)
rw.empty((2**40, 2**40)) | ValueError | an array of shape (1099511627776, 1099511627776)...at most
rw.empty((0, 2**63), "u1") | ValueError | an array of shape (0, 9223372036854775808)
rw.empty(2**50, "u1") | OutOfMemory | 1125899906842624 bytes asked...available
rw.empty(3, object) | TypeError | dtype object holds Python objects
rw.empty(3, [("a", "O")]) | TypeError | holds Python objects
rw.empty(3, "nonsense") | TypeError | nonsense
rw.share(3) | TypeError | share() takes an array...found int
rw.share(None) | TypeError | share() takes an array...found NoneType
rw.share([1]) | TypeError | share() takes an array...found list
rw.share(np.array([{}])) | TypeError | holds Python objects
rw.share(np.ma.array([1], mask=[1])) | TypeError | would drop the mask
rw.asarray(rw.zeros(3), like="nonsense") | ValueError | like must be one of torch...found 'nonsense'
rw.Pointer(3) | TypeError | an array in ropeway's memory expected, found int
rw.Pointer(np.zeros(3)) | BufferError | this array isn't in ropeway's memory
rw.Pointer(rw.zeros(8)[::2]) | BufferError | C order without gaps
""")
def test_an_array_that_cannot_be_is_refused(call, kind, words):
    before = rw.status().arrays
    refused(call, kind, words)
    gc.collect()
    assert rw.status().arrays == before


@table("""
pool.acquire("1") | TypeError | timeout must be a number of seconds or None, found '1'
pool.acquire([]) | TypeError | timeout must be a number of seconds or None, found []
pool.acquire(1j) | TypeError | timeout must be a number of seconds or None, found 1j
pool.acquire(math.nan) | ValueError | timeout must be a number of seconds, found nan
pool.take(timeout="1") | TypeError | timeout must be a number of seconds or None, found '1'
pool.take(timeout=math.nan) | ValueError | timeout must be a number of seconds, found nan
pool.take(timeout=-1) | Timeout | no slot came to "use"
pool.take(timeout=-math.inf) | Timeout | no slot came to "use"
pool.take(timeout=np.float64(-1)) | Timeout | no slot came to "use"
pool.take(timeout=-2**70) | Timeout | no slot came to "use"
pool.take(stage="nope", timeout=0) | NoSuch | no stage "nope"; its stages are ["fill", "use"]
pool.take(stage="", timeout=0) | NoSuch | no stage ""
pool.take(stage="fill", timeout=0) | NoSuch | "fill", are acquired, not taken
pool.take(stage=7, timeout=0) | TypeError | the name of a stage must be a str, found 7
pool.take(stage="\\ud800", timeout=0) | ValueError | a stage must be text that UTF-8
pool.take(number=-1, timeout=0) | ValueError | an int from 0 to 2**64 - 1 expected, found -1
pool.take(number="a", timeout=0) | TypeError | an int from 0 to 2**64 - 1 expected, found 'a'
pool.take(readonly="x", timeout=0) | Invalid | readonly must be "map" or None...found "x"
pool.take(readonly="map", private=True, timeout=0) | Invalid | found both
pool.take(write=True, private=True, timeout=0) | Invalid | readonly and private are for reading
pool.waiting("nope") | NoSuch | no stage "nope"
pool.waiting(7) | TypeError | the name of a stage must be a str, found 7
pool.ring("nope") | NoSuch | no field 'nope'; it has ['x', 'y']
pool.ring(7) | NoSuch | no field 7; it has ['x', 'y']
pool.ring() | NoSuch | no field None; it has ['x', 'y']
pool.ring("x") | Incompatible | field 'x' takes 16 bytes of each slot, and only multiples of 64
loose.ring("x") | NoSuch | no field 'x'; it has []
loose.acquire(0, -1) | ValueError | an int from 0 to 2**64 - 1 expected, found -1
loose.acquire(0, HUGE) | OutOfMemory | 4611686018427387904 bytes asked
loose.trim(-1) | ValueError | an int from 0 to 2**64 - 1 expected, found -1
loose.trim("a") | TypeError | an int from 0 to 2**64 - 1 expected, found 'a'
""")
def test_what_a_pool_cannot_do_is_refused(bench, call, kind, words):
    refused(call, kind, words, pool=bench.pool, loose=bench.loose)


@table("""
fill["z"] | NoSuch | no array "z"; it has ["x", "y"]
fill[""] | NoSuch | no array ""; it has ["x", "y"]
fill[0] | TypeError | the name of an array must be a str, found 0
fill[None] | TypeError | the name of an array must be a str, found None
fill[b"x"] | TypeError | the name of an array must be a str, found b'x'
fill[:] | TypeError | the name of an array must be a str, found slice
fill["\\ud800"] | ValueError | the name of an array must be text that UTF-8
fill.array | NoSuch | not one array; it has ["x", "y"]
fill.pointer(7) | TypeError | the name of an array must be a str, found 7
fill.export("z") | NoSuch | no array "z"
fill.__setitem__("z", 1) | NoSuch | no array "z"
fill.__setitem__("x", np.zeros(5)) | ValueError | shape (5,) into shape (4,)
fill.__setitem__("x", "abc") | ValueError | 'abc'
fill.add("x", 4, "f4") | Invalid | it has an array "x" already
read["x"].__setitem__(0, 1) | ValueError | read-only
read.publish() | AttributeError | 'ropeway.ReadLease' object has no attribute 'publish'
setattr(read, "meta", 1) | AttributeError | 'meta' of 'ropeway.ReadLease'
setattr(fill, "index", 1) | AttributeError | 'index' of 'ropeway.WriteLease'
free.array | NoSuch | not one array; it has []
free.add("", 4, "f4") | Invalid | the name of an array must have at least a letter
free.add(7, 4, "f4") | TypeError | the name of an array must be a str, found 7
free.add("\\ud800", 4, "f4") | ValueError | the name of an array must be text that UTF-8
free.add("a", -4, "f4") | ValueError | shape (-4,) has a negative dimension
free.add("a", (1,) * 65, "f4") | Invalid | array "a": at most 64 dimensions are supported, found 65
free.add("a", 2**50, "u1") | OutOfMemory | array "a" of 1125899906842624 bytes
free.add("a", 4, object) | TypeError | holds Python objects
setattr(free, "meta", {1: 2}) | TypeError | slot.meta has the key 1 of type int; a key must be a str
setattr(free, "meta", {"a": [{1}]}) | TypeError | slot.meta['a'][0] is of type set
setattr(free, "meta", b"x") | TypeError | slot.meta is of type bytes
setattr(free, "meta", np.zeros(3)) | TypeError | slot.meta is an array of shape (3,)
setattr(free, "meta", RECURSIVE) | ValueError | slot.meta is nested too deeply, or holds itself
setattr(free, "meta", DEEP) | ValueError | slot.meta is nested too deeply, or holds itself
setattr(free, "number", -1) | ValueError | an int from 0 to 2**64 - 1 expected, found -1
setattr(free, "number", 1.5) | TypeError | an int from 0 to 2**64 - 1 expected, found 1.5
pickle.dumps(free) | TypeError | ropeway.WriteLease
type(free)() | TypeError | ropeway.WriteLease
""")
def test_what_a_lease_cannot_do_is_refused(bench, call, kind, words):
    with bench.published() as read, bench.pool.acquire() as fill, bench.loose.acquire() as free:
        refused(call, kind, words, fill=fill, read=read, free=free)


ENDED = "publish() release() array keys() meta ['x'] add('y',1,'u1') pointer('x') export('x')"


@pytest.mark.parametrize("use", ENDED.split())
@pytest.mark.parametrize("end", ["release", "publish", "leave"])
def test_a_lease_is_of_no_use_once_it_has_ended(bench, use, end):
    lease = bench.loose.acquire()
    lease.add("x", 4, "f4")
    if end == "leave":
        with lease:
            pass
    else:
        getattr(lease, end)()
    if end == "publish":
        bench.loose.take().release()
    dot = "" if use.startswith("[") else "."
    refused(f"lease{dot}{use}", "Invalid", 'at "fill": the lease has ended', lease=lease)


@table("""
queue.put(threading.Lock()) | TypeError | lock
queue.put([np.zeros(3), os]) | TypeError | module
queue.put({"a": rw.zeros(3), "b": os}) | TypeError | module
queue.put(DEEP) | RecursionError | recursion
queue.put() | TypeError | obj
queue.put(1, timeout="1") | TypeError | timeout must be a number of seconds or None, found '1'
queue.put(1, timeout=math.nan) | ValueError | timeout must be a number of seconds, found nan
queue.get(timeout=[]) | TypeError | timeout must be a number of seconds or None, found []
queue.get(timeout=math.nan) | ValueError | timeout must be a number of seconds, found nan
queue.get(timeout=-1) | Empty |
queue.get(timeout=-math.inf) | Empty |
queue.get(False, 5) | Empty |
queue.get_nowait() | Empty |
rw.Queue("3") | TypeError | maxsize must be an int, found '3'
rw.Queue(1.5) | TypeError | maxsize must be an int, found 1.5
rw.Queue(None) | TypeError | maxsize must be an int, found None
rw.Queue(2**70) | ValueError | maxsize must be at most
""")
def test_what_a_queue_cannot_do_is_refused(bench, call, kind, words):
    before = rw.status().arrays
    refused(call, kind, words, queue=bench.queue)
    gc.collect()
    assert rw.status().arrays == before


def test_a_queue_without_a_limit_is_asked_for_by_any_number_up_to_zero():
    for maxsize in (0, -1, -(10**30)):
        queue = rw.Queue(maxsize)
        for number in range(100):
            queue.put_nowait(number)
        assert not queue.full()
        queue.close()


@table("""
open(None, text, (2,), 0, (8,), True) | TypeError | 'None'
open(handle[:-1], text, (2,), 0, (8,), True) | Incompatible | an array's handle
open(pool.handle, text, (2,), 0, (8,), True) | Incompatible | an array's handle
open(handle, None, (2,), 0, (8,), True) | Incompatible | None isn't the text of a dtype
open(handle, "O", (2,), 0, (8,), True) | Incompatible | 'O' isn't the text of a dtype
open(handle, text, (11,), 0, (8,), True) | Incompatible | shape (11,)...from byte 0...80 bytes
open(handle, text, (2,), -8, (8,), True) | Incompatible | from byte -8...80 bytes
open(handle, text, (2,), 80, (8,), True) | Incompatible | from byte 80...80 bytes
open(handle, text, (2,), 2**70, (8,), True) | Incompatible | from byte 1180591620717411303424
open(handle, text, (2,), 0, (-8,), True) | Incompatible | strides (-8,)
open(handle, text, (2,), 0, (HUGE,), True) | Incompatible | strides (4611686018427387904,)
open(handle, text, (2, 2), 0, (8,), True) | Incompatible | strides (8,)
open(handle, text, (-2,), 0, (8,), True) | Incompatible | shape (-2,)
open(handle, text, None, 0, None, True) | Incompatible | shape None
""")
def test_a_handle_of_an_array_that_was_tampered_with_is_refused(bench, call, kind, words):
    array = rw.zeros(10)
    open, (handle, text, *_) = array.__reduce_ex__(5)
    refused(call, kind, words, open=open, handle=handle, text=text, pool=bench.pool)


def test_a_handle_of_a_pool_with_any_byte_changed_is_refused_or_leads_nowhere_else(bench):
    handle = bench.pool.handle
    for place in range(len(handle)):
        for change in (1, 128, 255):
            changed = bytearray(handle)
            changed[place] ^= change
            with pytest.raises((rw.Incompatible, rw.Gone)):
                rw._core.attach(bytes(changed))
    for length in range(len(handle)):
        with pytest.raises(rw.Incompatible):
            rw._core.attach(handle[:length])


def test_a_handle_that_comes_too_late_says_what_is_gone():
    for make in (lambda: rw.Pool(1, 4, "f4"), lambda: rw.Queue(1), lambda: rw.zeros(3)):
        thing = make()
        handle = pickle.dumps(thing)
        if isinstance(thing, rw.Array):
            del thing  # a handle that nobody has opened keeps the array
            pickle.loads(handle)
        else:
            thing.close()
            del thing
        gc.collect()
        with pytest.raises(rw.Gone, match=r"^(pool|array) \w+"):
            pickle.loads(handle)


def test_a_closed_pool_is_drained_and_an_aborted_one_is_not(bench):
    for end, words in (("close", "is closed"), ("abort", "was aborted")):
        pool = rw.Pool(2, 4, "f4")
        with pool.acquire() as slot:
            slot.publish()
        held = pool.acquire()
        getattr(pool, end)()
        refused("pool.acquire(timeout=9)", "Closed", f"pool...{words}", pool=pool)
        if end == "close":
            pool.take(timeout=0).release()
            held.publish()
            pool.take(timeout=0).release()
        else:
            refused("held.publish()", "Closed", 'at "fill": the pool was aborted', held=held)
        refused("pool.take(timeout=9)", "Closed", f"pool...{words}", pool=pool)
        assert rw.Pool.__repr__(pool).endswith("closed, fill -> use, array: <f4 (4,)>")


def test_a_release_with_views_says_how_many_and_changes_nothing(bench):
    with bench.loose.acquire() as lease:
        views = [lease.add("x", 4, "f4"), lease["x"], memoryview(lease["x"])]
        views += [views[0][1:], views[0].T]  # of one base
        for end in ("release", "publish"):
            refused(
                f"lease.{end}()", "InUse", "3 views of its arrays live (x: 3 arrays", lease=lease
            )
        views[0][:] = 1
        assert (lease["x"] == 1).all()
        views.clear()
