"""R36, notebook, `__main__`, spawn and forkserver: computational-cell-analytics/dl-for-micro#20.

Also open-mmlab/mmdetection#410, facebookresearch/spdl#1565, CroatianMeteorNetwork/RMS#938. What a
worker can't import is an error within seconds that says so, never a wait without end.
"""

import pytest

FED = """
import os
import sys

# becomes an interpreter that reads its program from standard input
os.chdir(os.path.dirname(__file__))
with open("fed.txt", "w") as file:
    file.write({text!r})
os.dup2(os.open("fed.txt", os.O_RDONLY), 0)
os.execv(sys.executable, [sys.executable, "-", *sys.argv[1:]])
"""

INTERACTIVE = """
import importlib
import multiprocessing as mp
import os
import queue as standard
import sys
import tempfile

import numpy as np

import ropeway as rw

assert not os.path.exists(getattr(sys.modules["__main__"], "__file__", ""))
METHOD = sys.argv[1]
CONTEXT = mp.get_context(None if METHOD == "default" else METHOD)
FORKS = CONTEXT.get_start_method() == "fork"


class Squares:
    def __getitem__(self, index):
        return np.full(3, index * index)


def collate(samples):
    return np.stack(samples)
"""

NOTEBOOK = """
# a notebook's main module doesn't even claim to have a file, so that workers start
vars(sys.modules["__main__"]).pop("__file__", None)
"""

WORKING = (
    INTERACTIVE
    + """
def work(data, indices, queue):
    for index in indices:
        queue.put((index, collate([data[index], data[index]])))


queue = rw.Queue(4)
sys.stderr.flush()
if not FORKS:  # multiprocessing itself complains in the children
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
workers = [CONTEXT.Process(target=work, args=(Squares(), [k, k + 2], queue)) for k in (0, 1)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join(10)
if FORKS:
    for _ in range(4):
        index, batch = queue.get(timeout=10)
        assert batch.shape == (2, 3) and (batch == index * index).all()
else:
    assert [worker.exitcode for worker in workers] == [1, 1]
    try:
        queue.get(timeout=0.2)
    except (standard.Empty, rw.PeerDied):
        pass
    else:
        raise AssertionError("a message from nowhere")
queue.put(1)
assert queue.get(timeout=10) == 1
"""
)

MODULE = """
def serve(requests, answers):
    while True:
        try:
            data = requests.get(timeout=20)
        except AttributeError as error:
            answers.put(error)
            continue
        if data is None:
            return
        answers.put(data[7])
"""

SENT = (
    INTERACTIVE
    + NOTEBOOK
    + """
with tempfile.TemporaryDirectory() as folder:
    sys.path.insert(0, folder)
    with open(f"{folder}/served.py", "w") as file:
        file.write(MODULE)
    serve = importlib.import_module("served").serve
    requests, answers = rw.Queue(), rw.Queue()
    worker = CONTEXT.Process(target=serve, args=(requests, answers))
    worker.start()
    requests.put(Squares())
    answer = answers.get(timeout=10)
    if FORKS:
        assert (answer == 49).all()
    else:
        assert isinstance(answer, AttributeError) and "Squares" in str(answer), answer
    # both queues work after that
    requests.put({7: np.arange(3)})
    assert (answers.get(timeout=10) == np.arange(3)).all()
    requests.put(None)
    worker.join(10)
    assert worker.exitcode == 0
    assert not [slot for slot in requests.status().slots if slot.stage == "use"]
"""
).replace("MODULE", repr(MODULE))


@pytest.fixture(params=["fork", "spawn", "forkserver", "default"])
def any_method(request):
    """A start method, or the one of this version of Python."""
    return request.param


@pytest.fixture
def feed(room):
    """Runs a program that comes through standard input."""
    return lambda text, *arguments: room.run(FED.format(text=text), *arguments)


def test_workers_of_a_main_module_without_a_file_work_or_fail_within_seconds(feed, any_method):
    feed(WORKING, any_method)


def test_a_class_that_a_worker_cannot_import_is_named_and_the_queue_goes_on(feed, any_method):
    feed(SENT, any_method)


POOLED = (
    INTERACTIVE
    + NOTEBOOK
    + """
pool = rw.Pool(2, shape=(3,), dtype="i8")
with CONTEXT.Pool(2) as workers:
    got = workers.map(rw.Pool.status, [pool] * 4)  # what a worker can import
assert all(status.label == got[0].label for status in got)
"""
)


def test_a_pool_goes_to_workers_of_a_main_module_without_a_file(feed, any_method):
    """A sibling: what is sent is no class of the main module."""
    feed(POOLED, any_method)


UNGUARDED = """
import multiprocessing as mp
import os
import queue as standard
import sys

import numpy as np

import ropeway as rw

with open(os.path.join(os.path.dirname(__file__), "started"), "a") as file:
    print(os.getpid(), file=file)


def work(queue):
    queue.put(np.arange(3))


CONTEXT = mp.get_context("spawn")
queue = rw.Queue(4)
if mp.current_process().name == "MainProcess":
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # multiprocessing's complaints
workers = [CONTEXT.Process(target=work, args=(queue,)) for _ in range(2)]
for worker in workers:
    worker.start()
assert [worker.join(10) or worker.exitcode for worker in workers] == [1, 1]
try:
    queue.get(timeout=0.2)
except (standard.Empty, rw.PeerDied):
    print("refused")
"""


def test_a_script_without_a_guard_fails_and_starts_no_flood_of_processes(room, tmp_path):
    assert room.run(UNGUARDED) == "refused\n"
    assert len((tmp_path / "started").read_text().split()) <= 2 + 2


LARGE = """
import multiprocessing as mp
import sys
from multiprocessing import reduction

import numpy as np

import ropeway as rw

CONTEXT = mp.get_context(sys.argv[1])
MIB = 1 << 20


class Data:
    def __init__(self):
        self.array = rw.zeros((64, MIB), "u1")
        self.array[:] = np.arange(64, dtype="u1")[:, None]
        self.pool = rw.Pool(2, shape=(3,), dtype="u1")

    def check(self):
        assert (self.array[1:, ::4099] == np.arange(1, 64)[:, None]).all()
        self.array[0, 0] += 1


def work(data, queue):
    data.check()
    queue.put(data.array[7, :5], timeout=20)


def measured(dump):
    def measuring(thing, file, protocol=None):
        before = file.tell()
        dump(thing, file, protocol)
        SENT.append(file.tell() - before)

    return measuring


if __name__ == "__main__":
    SENT = []
    reduction.dump = measured(reduction.dump)
    data, queue = Data(), rw.Queue()
    workers = [CONTEXT.Process(target=work, args=(data, queue)) for _ in range(4)]
    for worker in workers:
        worker.start()
        assert sum(SENT) < 64 << 10, SENT
        SENT.clear()
    for _ in workers:
        assert (queue.get(timeout=20) == 7).all()
    for worker in workers:
        worker.join(20)
        assert worker.exitcode == 0
    assert data.array[0, 0] <= 4  # the workers wrote into this very array
    assert data.array[0, 0] > 0
"""


def test_a_large_array_goes_to_workers_as_a_handle(room, method):
    room.run(LARGE, method)
