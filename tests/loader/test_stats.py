"""What a loader says about itself."""

import dataclasses
import json
import time

import pytest
from datasets import Numbers, Slow

import ropeway as rw


def numbers(batches):
    return [n for batch in batches for n in batch["number"].tolist()]


def test_numbers_add_up(loader):
    batches = loader(Numbers(100), 8, 2)
    assert batches.stats().verdict == "no batch has been handed out yet"
    numbers(batches)
    stats = batches.stats()
    assert (stats.batches, stats.samples) == (13, 100)
    assert sum(worker.samples for worker in stats.workers) == 100
    assert sum(worker.batches for worker in stats.workers) == 13
    assert stats.nbytes >= 100 * 3 * 4 * 4
    assert stats.seconds > 0
    assert all(worker.pid and worker.faults for worker in stats.workers)
    assert 0 <= stats.waiting <= 1
    assert stats.samples_per_s > 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        stats.batches = 0


def test_a_loader_that_holds_things_up_is_told_from_a_consumer_that_does(loader):
    slow = loader(Slow(20, 0.02), 4, 2)
    numbers(slow)
    assert slow.stats().verdict.startswith("loader-bound: 2 workers busy")
    quick = loader(Numbers(40), 4, 1)
    iterator = iter(quick)
    next(iterator)
    quick._meter = type(quick._meter)()  # without the start of the worker
    quick._meter.start()
    for _ in iterator:
        time.sleep(0.03)
    assert quick.stats().verdict.startswith("consumer-bound: 1 worker busy")


@pytest.mark.parametrize(
    ("waits", "busy", "bound"), [(0.13, 0.44, "consumer"), (0.6, 0.9, "loader"), (0, 1, "consumer")]
)
def test_the_side_that_waits_less_holds_up_the_other(waits, busy, bound):
    worker = rw.WorkerStats(0, 1, 10 * busy, busy, 5, 5, 0, 0)
    stats = rw.LoaderStats(10.0, 5, 5, 0, 10 * waits, 10 * (1 - busy), 0, (worker,), ())
    assert stats.verdict.startswith(f"{bound}-bound: 1 worker busy {busy:.0%}")


def test_the_timeline_is_written(loader, tmp_path):
    batches = loader(Numbers(100), 8, 2)
    numbers(batches)
    batches.trace(tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert len(spans) == 26
    assert all(span["dur"] >= 0 for span in spans)
    names = {event["args"]["name"] for event in events if event["ph"] == "M"}
    assert ("consumer waits" in names and names >= {"worker 0"}) or "worker 1" in names


def test_without_workers_there_are_numbers_too(loader):
    batches = loader(Numbers(100), 8, 0)
    numbers(batches)
    stats = batches.stats()
    assert (stats.batches, stats.samples, stats.workers) == (13, 100, ())
    assert stats.verdict.startswith("no workers")


def test_a_bar_shows_how_it_goes(loader, capsys, monkeypatch):
    tqdm = pytest.importorskip("tqdm")
    monkeypatch.setattr(tqdm.tqdm, "monitor_interval", 0)  # its thread isn't ours
    numbers(loader(Numbers(100), 8, 1, progress=True))
    assert "13/13" in capsys.readouterr().err


def test_a_bar_without_its_package_is_an_error_that_names_it(loader, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with pytest.raises(ImportError, match="tqdm"):
        iter(loader(Numbers(100), 8, 0, progress=True))


def test_keeping_many_large_batches_is_warned_of_once(loader, monkeypatch):
    monkeypatch.setattr("ropeway.loader.shared._KEPT_BYTES", 1000)
    batches = loader(Numbers(600), 2, 2)
    with pytest.warns(ResourceWarning, match="batches.*are kept") as caught:
        kept = list(batches)
    assert len(caught) == 1
    assert numbers(kept) == list(range(600))


def test_a_memory_limit_is_an_error_that_says_who_holds_what(loader):
    batches = loader(Numbers(4000), 200, 1, memory_limit=256 << 10)
    kept = []
    with pytest.raises(rw.OutOfMemory, match=r"\d+ batches are kept"):
        kept.extend(batches)
    assert numbers(kept) == list(range(200 * len(kept)))
    assert len(kept) >= 3
