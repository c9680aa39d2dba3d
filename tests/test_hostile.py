"""What a member that breaks the protocol can do to Python users: cause errors, nothing worse."""

import contextlib
import mmap
import multiprocessing
import os
import pickle
import random
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import ropeway as rw

SLOT_RECORDS = (1 << 18) + 4096 * 64 + 65_536 * 64
BLOB = 384
"""Where in a slot's record the place of its description stands, plus 1."""

WATCHDOG = 60.0


class Segment:
    """A segment of a pool, opened and mapped without asking anybody."""

    def __init__(self, handle, number):
        pid, control, data = struct.unpack_from("<3Q", handle, 32)
        file = os.open(f"/proc/{pid}/fd/{(control, data)[number]}", os.O_RDWR)
        try:
            # The data segment is a sea of holes: its first part is enough.
            size = min(os.fstat(file).st_size, 1 << 26)
            self.bytes = mmap.mmap(file, size)
        finally:
            os.close(file)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.bytes.close()

    def number(self, at):
        return struct.unpack_from("<Q", self.bytes, at)[0]


def description(fields, meta=b""):
    """The description of arrays: (name, dtype text, itemsize, shape, offset)."""

    def text(some):
        return struct.pack("<Q", len(some)) + some

    rows = struct.pack("<Q", len(fields))
    for name, dtype, itemsize, shape, offset in fields:
        rows += text(name.encode()) + text(dtype.encode())
        rows += struct.pack(f"<{len(shape) + 3}Q", itemsize, len(shape), *shape, offset)
    return text(text(rows) + text(meta))


def deliver(*arrays, meta=b""):
    """Publishes a slot, puts another description in place of its own, and takes it."""
    pool = rw.Pool(1)
    with pool.acquire(timeout=WATCHDOG) as slot:
        slot.add("x", 4096, "u1")[:] = 1
        slot.meta = "m" * 8000
        slot.publish()
    with Segment(pool.handle, 0) as control, Segment(pool.handle, 1) as data:
        at = control.number(SLOT_RECORDS + BLOB) - 1
        assert at == 4096, "behind the array"
        text = description([(*array, 0) for array in arrays], meta)
        data.bytes[at : at + len(text)] = text
    return pool.take(timeout=WATCHDOG)


def test_a_true_description_is_read():
    with deliver(("x", "<u2", 2, (8, 4)), meta=b'{"a": 1}') as slot:
        assert (slot["x"].dtype, slot["x"].shape, slot.meta) == (np.uint16, (8, 4), {"a": 1})


@pytest.mark.parametrize(
    ("dtype", "itemsize"),
    [
        ("<f8", 1),
        ("|S1000000", 1),
        ("<U4", 4),
        ("|V0", 1),
        ("|u1", 8),
        ('["|u1",[100000]]', 1),
        ('{"names":["a"],"formats":["<f8"],"offsets":[1000000],"itemsize":1000008}', 8),
        ("bfloat16", 1),
    ],
)
def test_a_dtype_of_another_size_than_described_is_refused(dtype, itemsize):
    with deliver(("x", dtype, itemsize, (64,))) as slot:
        with pytest.raises(rw.Incompatible, match="bytes, its description says"):
            slot["x"]
        with pytest.raises(rw.Incompatible):
            slot.array  # noqa: B018


@pytest.mark.parametrize(
    "dtype", ["|O", "O", "object", "", "<f3", "no such", "{", "[[", "[]", '{"names":1}', "[" * 5000]
)
def test_a_dtype_that_nobody_writes_is_refused(dtype):
    with deliver(("x", dtype, 8, (4,))) as slot, pytest.raises(rw.Incompatible, match="dtype"):
        slot["x"]


def test_an_array_named_twice_is_refused():
    twice = deliver(("x", "|u1", 1, (4,)), ("x", "|u1", 1, (8,)))
    with twice as slot, pytest.raises(rw.Incompatible, match="two arrays"):
        slot["x"]


@pytest.mark.parametrize("meta", [b"{", b"\xff", b"[" * 3000, b"1" * 5000, b"NaN NaN", b"\x00"])
def test_metadata_that_nobody_writes_is_refused(meta):
    with deliver(meta=meta) as slot, pytest.raises(rw.Incompatible, match="metadata"):
        slot.meta  # noqa: B018


def test_any_description_is_read_or_refused():
    choice = random.Random(7)
    good = ("x", "<f4", 4, (8, 8))
    for _ in range(300):
        dtype = bytearray(choice.choice([b"<f4", b"|S8", b'["<f4",[2]]', b"bfloat16", b"<M8[ns]"]))
        dtype[choice.randrange(len(dtype))] = choice.randrange(32, 127)
        field = (good[0], dtype.decode(), choice.choice([0, 1, 4, 8]), good[3])
        with deliver(field) as slot:
            try:
                array = slot["x"]
            except (rw.Incompatible, ImportError):
                continue
            assert array.nbytes <= 4096
            array.tobytes()


# ---- garbage -------------------------------------------------------------------------------------


def work(pool, queue, shared, ready, stop):
    """Uses everything, and lets nothing but ropeway's own errors pass."""
    ready.touch()
    while not stop.exists():
        for use in (fill, change, read, look, allocate):
            with contextlib.suppress(rw.RopewayError):
                use(pool, shared)
        with contextlib.suppress(Exception):  # what is unpickled may be anything
            queue.put(np.arange(100), timeout=0.005)
            queue.get(timeout=0.005)


def fill(pool, _):
    with pool.acquire(timeout=0.005) as slot:
        slot["a"] = 7
        slot.meta = {"k": 1}
        slot.publish()


def change(pool, _):
    with pool.take(write=True, stage="change", timeout=0.005) as slot:
        slot["a"] += 1
        slot.publish()


def read(pool, _):
    with pool.take(timeout=0.005) as slot:
        slot["a"].sum()
        slot.meta  # noqa: B018


def look(pool, _):
    str(pool.status())
    pickle.loads(pickle.dumps(pool))


def allocate(_, shared):
    pickle.loads(shared).sum()
    rw.empty(1000).fill(1)


def scribble(handles, seed, seconds):
    """Writes random bytes over whole control segments."""
    choice = random.Random(seed)
    segments = [Segment(handle, 0) for handle in handles]
    hot = [
        (0, 4096),
        (64, 960),
        (1 << 18, 1024),
        ((1 << 18) + (1 << 18), 1024),
        (SLOT_RECORDS, 4096),
    ]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        target = choice.choice(segments).bytes
        start, size = choice.choice([*hot, (0, len(target))])
        at = start + choice.randrange(size) & ~7
        length = min(choice.choice([1, 8, 64, 512]), len(target) - at)
        kinds = [bytes(length), b"\xff" * length, choice.randbytes(length)]
        target[at : at + length] = choice.choice(kinds)
        if choice.random() < 0.2:
            time.sleep(choice.random() / 3000)


def apart(call):
    """Starts a function of this module in a process and a session of its own."""
    environment = {k: v for k, v in os.environ.items() if k != "ROPEWAY_SESSION"}
    environment["PYTHONPATH"] = str(Path(__file__).parent)
    code = f"import test_hostile; test_hostile.{call}"
    return subprocess.Popen([sys.executable, "-c", code], env=environment)


def finish(process):
    assert process.wait(WATCHDOG) == 0


@pytest.mark.parametrize("seed", range(4))
def test_garbage_in_the_control_segments_is_survived(seed, tmp_path):
    """Among them that of the arena."""
    finish(apart(f"survive({seed}, {str(tmp_path)!r})"))


@pytest.mark.parametrize("seed", range(3))
def test_garbage_under_a_loader_is_survived(seed):
    """It hands out whole batches or raises ropeway's own errors, and can be closed."""
    finish(apart(f"load({seed})"))


class Numbers:
    def __len__(self):
        return 200

    def __getitem__(self, i):
        return {"a": np.full((50, 50), i, "f4"), "i": i}


def load(seed):
    """Reads from a loader while garbage comes into its pool and into the arena."""
    loader = rw.Loader(Numbers(), batch_size=4, workers=2, timeout=0.5)
    next(iter(loader))
    handles = [loader._engine.pool.handle, rw.zeros(1000).base.handle[24:]]
    scribbling = apart(f"scribble({handles!r}, {seed}, 1.0)")
    while scribbling.poll() is None:
        with contextlib.suppress(rw.RopewayError):
            for batch in loader:
                assert batch["a"].shape == (4, 50, 50)
                batch["a"].sum()
    finish(scribbling)
    loader.close()


def survive(seed, folder):
    """Works beside two others while garbage comes; all must come to a good end."""
    context = multiprocessing.get_context("spawn")
    pool = rw.Pool(3, shape=(1000,), dtype="f4", stages=("fill", "change", "use"))
    queue, array = rw.Queue(4), rw.zeros(1000)
    shared = pickle.dumps(array)
    handles = [pool.handle, queue._opened().handle, array.base.handle[24:]]
    stop, *ready = (Path(folder) / name for name in ("stop", "0", "1"))
    workers = [
        context.Process(target=work, args=(pool, queue, shared, file, stop)) for file in ready
    ]
    for worker in workers:
        worker.start()
    while not all(file.exists() for file in ready):
        time.sleep(0.01)
    scribble(handles, seed, 1.0)
    stop.touch()
    for worker in workers:
        worker.join(WATCHDOG / 2)
        assert worker.exitcode == 0, worker.exitcode
    stop.unlink()
    for use in (fill, change, read, look, allocate):
        with contextlib.suppress(rw.RopewayError):
            use(pool, shared)
