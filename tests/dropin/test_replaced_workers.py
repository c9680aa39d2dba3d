"""A worker that dies is replaced, and the stream is as if it hadn't."""

import os
import signal

import pytest
import sets
import torch
from alike import assert_alike
from torch.utils.data import DataLoader as Theirs

import ropeway as rw
from ropeway.torch import DataLoader, WorkerDied, worker


def run(kind, dataset, epochs=2, **options):
    torch.manual_seed(7)
    loader = kind(dataset, **{"batch_size": 4, "num_workers": 2, **options})
    found = [list(loader) for _ in range(epochs)]
    if loader._iterator is not None:
        loader._iterator._shutdown_workers()
    return found


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSEGV, None], ids=str)
@pytest.mark.parametrize("persistent", [True, False])
def test_the_stream_is_as_if_nothing_had_happened(tmp_path, how, persistent):
    """Down to the draws of all generators, which run on from batch to batch."""
    options = {"persistent_workers": persistent, "shuffle": True}
    undisturbed = run(Theirs, sets.Drawing(40), **options)
    disturbed = run(DataLoader, sets.Deadly(40, tmp_path, [0, 7, 8, 21, 39], how=how), **options)
    assert_alike(undisturbed, disturbed)
    assert len(list(tmp_path.iterdir())) == 5


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("size", [4, None])
def test_streams_go_on_where_they_were(tmp_path, persistent, size):
    options = {"persistent_workers": persistent, "batch_size": size}
    undisturbed = run(Theirs, sets.Stream(42), 3, **options)
    disturbed = run(DataLoader, sets.Stream(42, folder=tmp_path, once=[0, 9, 20, 41]), 3, **options)
    assert_alike(
        [[(b[0], b[1].shape) for b in epoch] for epoch in undisturbed],
        [[(b[0], b[1].shape) for b in epoch] for epoch in disturbed],
    )


def test_it_is_so_with_spawn(tmp_path):
    options = {"epochs": 1, "multiprocessing_context": "spawn"}
    undisturbed = run(Theirs, sets.Drawing(12), **options)
    assert_alike(undisturbed, run(DataLoader, sets.Deadly(12, tmp_path, [5]), **options))


@pytest.mark.parametrize("retries", [1, 2])
def test_a_sample_that_kills_is_named_and_the_rest_arrives(tmp_path, retries):
    data = sets.Deadly(16, tmp_path, always=[5])
    iterator = iter(DataLoader(data, 4, num_workers=2, retries=retries))
    assert next(iterator)[0].tolist() == [0, 1, 2, 3]
    with pytest.raises(WorkerDied, match=r"DataLoader worker \(pid\(s\) .*sample 5.*SIGKILL") as e:
        next(iterator)
    assert str(e.value).count("SIGKILL") == retries + 1
    assert isinstance(e.value, RuntimeError)
    assert isinstance(e.value, rw.WorkerError)
    assert [b[0].tolist() for b in iterator] == [[8, 9, 10, 11], [12, 13, 14, 15]]


@pytest.mark.parametrize("kind", [Theirs, lambda *a, **k: DataLoader(*a, retries=0, **k)])
def test_without_retries_a_death_ends_the_epoch_as_torch_has_it(tmp_path, kind):
    """D16."""
    iterator = iter(kind(sets.Deadly(8, tmp_path, always=[1]), 4, num_workers=1))
    with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid"):
        next(iterator)


def test_idle_workers_that_are_killed_are_replaced():
    iterator = iter(DataLoader(sets.Info(), 1, num_workers=2, collate_fn=tuple, prefetch_factor=1))
    pids = set()
    for _ in range(8):
        ((*_, pid, _),) = next(iterator)
        pids.add(pid)
        os.kill(iterator._workers[0].pid, signal.SIGKILL)
    assert len(pids) > 2


def test_a_failing_init_is_not_told_again_by_the_next_worker():
    iterator = iter(
        DataLoader(sets.Numbers(16), 2, num_workers=2, worker_init_fn=sets.failing_init)
    )
    found = []
    for number in range(8):
        try:
            found.append(next(iterator)["label"].tolist())
        except Exception as error:
            found.append(type(error))
        if number == 1:
            os.kill(iterator._workers[1].pid, signal.SIGKILL)
    broken = [ValueError, *[UnboundLocalError] * 3]
    assert found[1::2] == broken
    assert found[::2] == [[4 * n, 4 * n + 1] for n in range(4)]
    iterator._shutdown_workers()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_that_never_get_ready_are_an_error_not_a_loop(method):
    loader = DataLoader(Ending(), num_workers=1, multiprocessing_context=method, worker_init_fn=end)
    with pytest.raises(WorkerDied, match=r"exited unexpectedly.*exit status 5"):
        list(loader)


class Ending(sets.Numbers):
    pass


def end(worker):
    os._exit(5)


def test_a_stream_that_cannot_begin_again_is_told_once_by_each_worker():
    """torch's workers end of that; ours must neither end nor be replaced again and again."""
    loader = DataLoader(sets.Unwilling(6), 2, num_workers=2, persistent_workers=True)
    assert len(list(loader)) > 0
    iterator, told = iter(loader), []
    for _ in range(2):
        with pytest.raises(ValueError, match="not again") as caught:
            next(iterator)
        told.append(str(caught.value).partition(".")[0])
    assert told == [f"Caught ValueError in DataLoader worker process {n}" for n in range(2)]
    assert [worker.restarts for worker in iterator._workers] == [0, 0]
    iterator._shutdown_workers()


def test_what_a_worker_cannot_tell_counts_as_its_death(monkeypatch):
    """Whatever goes wrong in a worker's own code, it isn't begun again and again."""
    fetched = worker._Worker._fetched

    def broken(self, keys):
        if 5 in keys:
            os.close(2)
            raise RuntimeError("nobody has foreseen this")
        return fetched(self, keys)

    monkeypatch.setattr(worker._Worker, "_fetched", broken)
    iterator = iter(DataLoader(sets.Numbers(12), 4, num_workers=1, retries=1))
    assert next(iterator)["label"].tolist() == [0, 1, 2, 3]
    with pytest.raises(WorkerDied, match=r"ended 2 workers.*exit status 1"):
        next(iterator)
    assert next(iterator)["label"].tolist() == [8, 9, 10, 11]
    iterator._shutdown_workers()


def test_workers_leave_interrupts_to_the_parent_from_their_first_instruction(capfd):
    """Each unpickles the dataset before it comes to its own code."""
    loader = DataLoader(sets.Interrupted(8), 4, num_workers=1, multiprocessing_context="spawn")
    assert [batch["label"].tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert "KeyboardInterrupt" not in capfd.readouterr().err
