"""The processes around a loader: who may start workers, how, and what those have to say."""

import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import sets
import torch
from alike import assert_alike, taken
from torch.utils.data import DataLoader as Theirs

from ropeway.torch import DataLoader as Ours

WATCHDOG = 80
KINDS = {"torch": Theirs, "ropeway": Ours}


@pytest.mark.parametrize("name", ["SIGBUS", "SIGSEGV", "SIGFPE", "SIGTERM"])
def test_a_worker_that_is_killed_says_what_torchs_says(capfd, name):
    """D4."""
    said = []
    for kind, options in ((Theirs, {}), (Ours, {"retries": 0})):
        data = Signalled(name)
        iterator = iter(kind(data, 1, num_workers=1, **options))
        with pytest.raises(RuntimeError, match="DataLoader worker"):
            next(iterator)
        iterator._shutdown_workers()
        said.append(capfd.readouterr().err)
    assert said[0] == said[1]
    assert ("ERROR" in said[1]) == (name != "SIGTERM")


class Signalled(sets.Numbers):
    """Sends its worker a signal."""

    def __init__(self, name):
        super().__init__(1)
        self.name = name

    def __getitem__(self, index):
        os.kill(os.getpid(), getattr(signal, self.name))
        return index


def test_workers_are_daemons_as_torchs_are(kind):
    """D1."""
    iterator = iter(kind(sets.Numbers(4), num_workers=2))
    assert [worker.daemon for worker in iterator._workers] == [True, True]
    for _ in iterator:
        found = {Path(f"/proc/{worker.pid}/comm").read_text() for worker in iterator._workers}
        break
    iterator._shutdown_workers()
    assert "pt_data_worker\n" in found  # what has made a batch has its name


@pytest.mark.parametrize("way", ["fork", "spawn", "forkserver", "context", "torch's context"])
def test_contexts_of_every_kind(kind, way):
    """A6."""
    context = {
        "context": multiprocessing.get_context("fork"),
        "torch's context": torch.multiprocessing.get_context("spawn"),
    }.get(way, way)
    loader = kind(sets.Numbers(6), 4, num_workers=1, multiprocessing_context=context)
    assert [batch["label"].tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5]]


def in_a_process(kind, method, in_thread, results):
    """Reads with a loader, in a process of its own."""
    found = []

    def read():
        loader = KINDS[kind](sets.Numbers(6), 4, num_workers=2, multiprocessing_context=method)
        found.extend(batch["label"].tolist() for batch in loader)

    if in_thread:
        thread = threading.Thread(target=read)
        thread.start()
        thread.join()
    else:
        read()
    results.send(found)


@pytest.mark.parametrize(
    ("outer", "method", "in_thread"),
    [("spawn", "fork", False), ("spawn", "spawn", True), ("fork", "fork", True)],
)
@pytest.mark.parametrize("kind", KINDS)
def test_loaders_in_processes_of_every_kind(kind, outer, method, in_thread):
    """D21."""
    context = multiprocessing.get_context(outer)
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=in_a_process, args=(kind, method, in_thread, theirs))
    process.start()
    theirs.close()
    assert ours.poll(WATCHDOG)
    assert ours.recv() == [[0, 1, 2, 3], [4, 5]]
    process.join(WATCHDOG)
    assert process.exitcode == 0
    process.close()


class Counted:
    """A sampler that counts how many keys it has given."""

    def __init__(self, length):
        self.length, self.given = length, 0

    def __iter__(self):
        for key in range(self.length):
            self.given += 1
            yield key


@pytest.mark.parametrize("factor", [2, 3])
def test_keys_are_drawn_when_torch_draws_them(factor):
    """D7: also before an exception is raised again."""
    runs = []
    for kind in (Theirs, Ours):
        sampler = Counted(30)
        data = sets.Failing(ValueError("no"), (4, 5, 9), 30)
        iterator = iter(kind(data, 2, sampler=sampler, num_workers=2, prefetch_factor=factor))
        drawn = [sampler.given]
        while True:
            try:
                next(iterator)
            except StopIteration:
                break
            except ValueError:
                drawn.append("raised")
            drawn.append(sampler.given)
        runs.append(drawn)
    assert runs[0] == runs[1]
    assert runs[1][0] == 2 * 2 * factor
    assert runs[1].count("raised") == 2


def test_each_arrival_restarts_the_time_limit(kind):
    """D15: also that of a batch which isn't wanted yet."""
    loader = kind(Delays([3.6, 1.8]), 1, num_workers=2, timeout=3, collate_fn=list)
    assert list(loader) == [[0], [1]]


class Delays(sets.Numbers):
    def __init__(self, delays):
        super().__init__(len(delays))
        self.delays = delays

    def __getitem__(self, index):
        time.sleep(self.delays[index])
        return index


def test_every_next_is_in_a_profile_by_torchs_name(kind, monkeypatch):
    """D22."""
    found = []

    def noted(name):
        found.append(name)
        return contextlib.nullcontext()

    monkeypatch.setattr(torch.autograd.profiler, "record_function", noted)
    list(kind(sets.Numbers(6), 2, num_workers=1))
    assert found == ["enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"] * 4


def test_a_loader_may_be_made_again_from_its_attributes(kind):
    """A17: as frameworks do it."""
    first = kind(sets.Numbers(10), 4, num_workers=1, persistent_workers=True, timeout=60)
    names = (
        *("dataset", "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn"),
        *("multiprocessing_context", "generator", "prefetch_factor", "persistent_workers"),
        *("pin_memory_device", "in_order", "batch_sampler"),
    )
    again = type(first)(**{name: getattr(first, name) for name in names})
    assert [batch["label"].tolist() for batch in again] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    again._iterator._shutdown_workers()


def test_getitems_that_is_none_is_not_asked():
    """D9."""
    assert_alike(*(taken(kind(NotAtOnce(6), 4, num_workers=1)) for kind in (Theirs, Ours)))


class NotAtOnce(sets.Numbers):
    __getitems__ = None


PROGRAM = """
import json, os, sys
from {module} import DataLoader
class Data:
    def __len__(self): return 1
    def __getitem__(self, index):
        umask = os.umask(0)
        return [os.getcwd(), umask, sys.argv, os.environ.get("ROPEWAY_TEST"), sys.path[-1]]
if __name__ == "__main__":
    os.environ["ROPEWAY_TEST"] = "set"
    os.umask(0o027)
    os.chdir("/")
    sys.path.append("/nowhere")
    (found,) = DataLoader(
        Data(), None, num_workers=1, multiprocessing_context=sys.argv[1], collate_fn=list
    )
    print(json.dumps(found))
"""


def test_workers_find_around_them_what_torchs_find(tmp_path):
    said = []
    for module in ("torch.utils.data", "ropeway.torch"):
        program = tmp_path / "program.py"
        program.write_text(PROGRAM.format(module=module))
        where = str(Path(sys.modules["ropeway"].__file__).parents[1])
        done = subprocess.run(
            [sys.executable, "-W", "ignore", program, "spawn"],
            capture_output=True,
            text=True,
            timeout=WATCHDOG,
            check=True,
            env={**os.environ, "PYTHONPATH": where},
        )
        said.append(json.loads(done.stdout))
    assert said[0] == said[1] == ["/", 0o027, [str(program), "spawn"], "set", "/nowhere"]
