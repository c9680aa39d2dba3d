"""What happens when workers die: nothing is lost, and who is to blame is named."""

import multiprocessing
import os
import select
import signal
import time
from pathlib import Path

import pytest
from datasets import Deadly, Numbers, Pid, Slow

import ropeway as rw
from ropeway.loader import life, zygote


def numbers(batches):
    return [n for batch in batches for n in batch["number"].tolist()]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, None])
def test_the_stream_is_the_same_when_workers_die(loader, tmp_path, method, how):
    data = Deadly(200, tmp_path, once=[3, 50, 51, 120, 199], how=how)
    batches = loader(data, batch_size=8, workers=2, start_method=method)
    for _ in range(2):
        assert numbers(batches) == list(range(200))
        time.sleep(0.1)
    batches._engine._watch()
    stats = batches.stats()
    assert stats.restarts == 5
    assert [ending.status for ending in stats.endings] == [3 if how is None else -how] * 5
    assert [ending.noticed for ending in stats.endings] == sorted(e.noticed for e in stats.endings)
    living = {worker.pid for worker in stats.workers}
    assert not living & {ending.pid for ending in stats.endings}


@pytest.mark.parametrize(
    ("how", "story"),
    [(signal.SIGKILL, "SIGKILL"), (signal.SIGUSR1, "SIGUSR1"), (None, "exit status 3")],
)
def test_a_sample_that_kills_its_workers_is_named(loader, tmp_path, method, how, story):
    data = Deadly(40, tmp_path, always=[13], how=how)
    batches = loader(data, batch_size=8, workers=2, start_method=method, retries=1)
    iterator = iter(batches)
    assert numbers([next(iterator)]) == list(range(8))
    with pytest.raises(rw.WorkerError, match=f"sample 13.*{story}") as caught:
        next(iterator)
    assert str(caught.value).count(story) == 2
    assert numbers(iterator) == list(range(16, 40))  # the loader goes on
    time.sleep(0.1)
    batches._engine._watch()
    assert batches.stats().restarts == 2


def test_without_retries_the_first_death_is_an_error(loader, tmp_path):
    batches = loader(Deadly(8, tmp_path, always=[2]), batch_size=4, workers=1, retries=0)
    with pytest.raises(rw.WorkerError, match="sample 2"):
        next(iter(batches))


def test_idle_and_stopped_workers_that_are_killed_are_replaced(loader):
    batches = loader(Pid(10_000), batch_size=1, workers=2, prefetch=6)
    iterator = iter(batches)
    seen = set()
    for _ in range(5):
        pid = int(next(iterator)[0])
        seen.add(pid)
        time.sleep(0.02)  # the workers are idle now
        os.kill(pid, signal.SIGSTOP)
        os.kill(pid, signal.SIGKILL)
        for _ in range(20):
            assert next(iterator)[0] > 0
        eventually_gone(pid)
    assert len(seen) == 5


def eventually_gone(pid):
    end = time.monotonic() + 20
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_dead_zygote_is_replaced_with_its_workers(loader):
    batches = loader(Slow(200, 0.002), batch_size=4, workers=2)
    iterator = iter(batches)
    first = numbers([next(iterator)])
    (hand, *_) = batches._engine.crew._hands.values()
    os.kill(hand._zygote._process.pid, signal.SIGKILL)
    assert first + numbers(iterator) == list(range(200))
    assert numbers(batches) == list(range(200))


def test_a_zygote_ends_quietly_though_its_reports_are_unread(loader, capfd):
    batches = loader(Pid(100), batch_size=1, workers=2)
    pid = int(next(iter(batches))[0])
    (hand, *_) = batches._engine.crew._hands.values()
    zygote = hand._zygote
    os.kill(pid, signal.SIGKILL)
    assert select.select([zygote._socket], [], [], 20)[0], "the death is reported"
    zygote.close()  # resets the connection
    assert zygote._process.returncode in (0, -signal.SIGKILL)
    assert capfd.readouterr().err == ""


def test_a_stuck_worker_is_named_in_time(loader):
    batches = loader(Slow(40, 30, slow=[9]), batch_size=8, workers=1, timeout=0.3)
    iterator = iter(batches)
    assert numbers([next(iterator)]) == list(range(8))
    with pytest.raises(rw.Timeout, match=r"worker 0 \(process \d+\).*sample 9"):
        next(iterator)


def test_a_loader_that_is_forgotten_ends_its_workers(eventually):
    batches = rw.Loader(Pid(100), batch_size=1, workers=2)
    pid = int(next(iter(batches))[0])
    del batches
    assert eventually(lambda: not Path(f"/proc/{pid}").exists())


def test_two_loaders_share_the_zygote_and_end_alone(loader):
    one, two = loader(Pid(50), 1, 1), loader(Numbers(50), 5, 1)
    first, second = iter(one), iter(two)
    pid = int(next(first)[0])
    next(second)
    one.close()
    eventually_gone(pid)
    assert numbers(second) == list(range(5, 50))
    with pytest.raises(rw.Closed):
        next(first)


def test_workers_that_never_get_ready_are_an_error_not_a_loop(loader, method):
    batches = loader(Ending(8), 4, 2, start_method=method)
    for _ in range(2):
        with pytest.raises(rw.WorkerError, match="before it was ready"):
            next(iter(batches))


class Ending(Numbers):
    """Ends whoever loads it, or asks for its attributes in a forked worker."""

    def __setstate__(self, state):
        os._exit(7)

    def __getattribute__(self, name):
        if name == "__getitems__" and os.getppid() == TESTS:
            os._exit(7)
        return super().__getattribute__(name)


TESTS = os.getpid()


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_without_samples_has_no_batches(loader, workers, shuffle):
    assert list(loader(Numbers(0), 4, workers, shuffle=shuffle)) == []
    assert len(loader(Numbers(0), 4, workers)) == 0


def test_a_worker_that_comes_too_late_ends_quietly(capfd):
    """Its loader is closed already, and what it was to work with may be gone."""
    here = zygote.Zygote.get()
    reader, writer = os.pipe()
    os.close(writer)
    pid = here.start(0, reader, b"what isn't there any more")
    os.close(reader)
    end = time.monotonic() + 20
    while (status := here.status(pid)) is None:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    here.close()
    assert capfd.readouterr().err == ""


class Late:
    """Its unpickling fails, as that of a pool that is gone does."""

    def __reduce__(self):
        return print, ("not even looked at",)


def test_a_started_worker_that_comes_too_late_looks_at_nothing(capfd):
    context = multiprocessing.get_context("spawn")
    reader, writer = os.pipe()
    os.close(writer)
    process = context.Process(target=print, args=(life.Charge(reader, Late()),))
    process.start()
    os.close(reader)
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    process.close()
    assert capfd.readouterr() == ("", "")


class Vanished:
    """A task whose pool is gone."""

    def __init__(self, sign):
        self.sign = sign

    def __reduce__(self):
        return vanish, (self.sign,)


def vanish(sign):
    sign.touch()
    raise rw.RopewayError("the pool is gone")


@pytest.mark.parametrize("start", ["spawn", "forkserver"])
def test_a_worker_whose_pool_goes_before_the_pipe_ends_quietly(capfd, tmp_path, start, eventually):
    """So it is for an instant when a program ends: its memory goes first, then what it has open."""
    sign = tmp_path / "looked"
    reader, writer = os.pipe()
    charge = life.Charge(reader, Vanished(sign))
    process = multiprocessing.get_context(start).Process(target=print, args=(charge,))
    process.start()
    os.close(reader)
    assert eventually(sign.exists)
    os.close(writer)
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    process.close()
    assert capfd.readouterr() == ("", "")
