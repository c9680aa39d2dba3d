"""The benchmark of loaders: batches are checked, ratios taken in a round, losses told."""

import numpy as np
import pytest

from ropeway.bench.loaders import claims, command, page, tables, trial
from ropeway.bench.loaders.contestants import (
    CONTESTANTS,
    Limit,
    RawArrays,
    Ropeway,
    RopewayInPlace,
    Torch,
)
from ropeway.bench.loaders.trial import Trial
from ropeway.bench.loaders.workloads import make
from ropeway.bench.results import Figure, Results

OWN = [Limit.name, "limit, shared memory", RawArrays.name, Ropeway.name, RopewayInPlace.name]


@pytest.mark.parametrize("name", OWN)
def test_a_trial_measures_what_it_has_checked(name):
    record = command._run(Trial("fill", name, 2, seconds=0.02))
    assert "error" not in record
    assert record["batches_s"] > 0
    assert record["pss_mb"] > 0


def test_a_killed_worker_is_noticed():
    record = command._run(Trial("kill", Ropeway.name, 2, seconds=0.02))
    assert record["went_on"]


def test_a_batch_that_isn_t_the_next_one_is_an_error():
    contestant = RawArrays(make("fill", 64 * 4, None), 1)
    batch = np.stack([contestant.data[key] for key in range(64, 128)])
    assert trial._check(contestant, "fill", batch, 1) == 2
    with pytest.raises(trial.WrongBatchError, match="batch 2"):
        trial._check(contestant, "fill", batch, 2)
    batch[63, 2, 223, 223] = 0
    with pytest.raises(trial.WrongBatchError, match="batch 1"):
        trial._check(contestant, "fill", batch, 1)


def test_a_trial_that_fails_is_told_and_not_raised():
    assert "nobody" in command._run(Trial("fill", "nobody", 1, seconds=0.02))["error"]


def test_the_page_says_where_ropeway_loses():
    rates = {Limit.name: (10.0, 100.0), RopewayInPlace.name: (5.0, 50.0), RawArrays.name: (8.0,)}
    results = some_results(rates | {Torch.name: (1.0, 10.0)})
    assert claims.ratio(results, "batches_s", RopewayInPlace.name, Limit.name, "fill") == Figure(
        0.5, 0.5, 0.5
    )
    text = page.write(results)
    ours = "rw.Loader, in place 27.5 (5.00..50.0)"
    assert f"fill, 2 workers: RawArray + 2 queues makes 8.00 batches/s, {ours}" not in text
    assert f"fill, 2 workers: {Limit.name} makes" not in text
    results.records.append(results.records[-1] | {"contestant": RawArrays.name, "batches_s": 90.0})
    text = page.write(results)
    assert f"fill, 2 workers: RawArray + 2 queues makes 49.0 (8.00..90.0) batches/s, {ours}" in text
    assert "Not reached: fill: batches/s, rw.Loader, in place / limit: 0.5, at least 0.9." in text


def test_every_contestant_has_a_row_in_its_table():
    results = some_results(dict.fromkeys(CONTESTANTS, (1.0,)))
    (table,) = tables.tables(results)
    assert [row[0] for row in table.rows] == list(CONTESTANTS)


def some_results(rates):
    """Batches/s of the fill workload, each contestant with a value for each round."""
    about = {"date": "2026-01-01", "machine": "a machine", "versions": {"python": "3.11"}}
    about |= {"load": [0.0], "rounds": 2, "command": "ropeway bench loader", "seconds": 0.8}
    about |= {"not_installed": {}, "without": {}, "least": 12}
    records = [
        {"kind": "fill", "contestant": name, "workers": 2, "round": number, "batches_s": value}
        for name, values in rates.items()
        for number, value in enumerate(values, 1)
    ]
    return Results(about, records)
