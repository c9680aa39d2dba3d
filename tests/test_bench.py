"""The benchmarks measure what they say: answers are checked, failures told, ratios in a round."""

import numpy as np
import pytest

from ropeway.bench import claims, contest, fill, floor, page, plan, tables
from ropeway.bench.peers import PEERS, ContentsError, Ropeway, check
from ropeway.bench.placement import ONE_CORE, placements
from ropeway.bench.results import Figure, Results
from ropeway.bench.trial import Trial

PLACEMENT = list(placements())[-1]
BRIEF = 0.005


@pytest.fixture(scope="module", autouse=True)
def what_iceoryx2_leaves_behind():
    """Lets iceoryx2 make the file that it keeps in /dev/shm for good before anybody counts."""
    name = "iceoryx2, events"
    if PEERS[name].missing() is None:
        only_record(Trial("oneway", name, PLACEMENT, nbytes=64, slots=2, seconds=BRIEF))


def only_record(trial: Trial) -> dict:
    (record,) = contest.run(trial)
    return record


@pytest.mark.parametrize("question", ["roundtrip", "oneway"])
@pytest.mark.parametrize("name", PEERS)
def test_every_contestant_carries_numbered_arrays_whole(name, question):
    peer = PEERS[name]
    if missing := peer.missing():
        pytest.skip(f"{missing} is not installed")
    if peer.one_way_only and question == "roundtrip":
        pytest.skip("goes one way only")
    record = only_record(Trial(question, name, PLACEMENT, nbytes=4096, slots=3, seconds=BRIEF))
    assert "error" not in record
    assert record["turns"] > 0


@pytest.mark.parametrize("name", [floor.FUTEX, floor.SPIN, floor.RUST])
@pytest.mark.parametrize("slots", [1, 16])
def test_the_floor_hands_over_there_and_back(name, slots):
    if floor.program() is None:
        pytest.skip(f"not built: {floor.BUILD}")
    trial = Trial("roundtrip", name, PLACEMENT, nbytes=4096, slots=slots, seconds=BRIEF)
    assert only_record(trial)["turns"] > 0


def test_wrong_contents_are_an_error():
    array = np.full(100, 7, np.uint8)
    check(array, 7)
    array[50] = 8
    with pytest.raises(ContentsError, match="sent full of 7 and holds 7 to 8"):
        check(array, 7)


def test_a_trial_that_fails_is_told_and_not_raised():
    record = only_record(Trial("roundtrip", "nobody", ONE_CORE, nbytes=16))
    assert "nobody" in record["error"]


def test_hand_offs_are_counted_under_a_limit_on_descriptors():
    name = "shared_memory + SimpleQueue"
    trial = Trial("descriptors", name, PLACEMENT, nbytes=64, slots=2, turns=50)
    record = only_record(trial)
    assert (record["turns"], record["new_near"]["descriptors"]) == (50, 0)
    assert 0 < record["far"]["descriptors"] < 64


def test_fresh_memory_faults_and_kept_memory_does_not():
    fresh = "shared_memory, fresh each time"
    ways = (fill.PRIVATE, fresh)
    records = contest.run(Trial("fill", "ways", ONE_CORE, nbytes=fill.NBYTES, turns=1, ways=ways))
    shares = {record["contestant"]: record["faulted_share"] for record in records}
    assert shares[fill.PRIVATE] < 0.01
    assert shares[fresh] > 0.9


def test_every_way_of_giving_an_array_away_is_timed():
    (trial,) = plan.Plan(("export",), seconds=1.0, quick=True).trials()
    records = contest.run(trial)
    assert [record["contestant"] for record in records] == list(trial.ways)
    assert all(record["ns"] > 0 for record in records), records


def test_every_trial_of_a_round_can_be_told_apart():
    trials = plan.Plan(plan.QUESTIONS, seconds=1.0).trials()
    assert len({trial.to_json() for trial in trials}) == len(trials)


def test_a_ratio_is_taken_within_a_round():
    results = some_results(trips={floor.FUTEX: (4.0, 40.0), Ropeway.name: (6.0, 60.0)})
    where = {"contestant": Ropeway.name}
    assert results.ratio("p50_us", where, {"contestant": floor.FUTEX}) == Figure(1.5, 1.5, 1.5)


def test_the_page_says_where_ropeway_loses():
    peer = "shared_memory + SimpleQueue"
    results = some_results(trips={floor.FUTEX: (4.0,), Ropeway.name: (13.0,), peer: (5.0,)})
    text = page.write(results)
    assert f"Round trip, one core: {peer} takes 5.00 µs, ropeway 13.0 µs." in text
    assert "never over 3.00" in text
    assert [claim.limit for claim in claims.claims(results) if not claim.holds] == [1.6, 3.0]


def test_results_survive_their_file(tmp_path):
    results = some_results(trips={floor.FUTEX: (4.0, 5.0)})
    results.save(tmp_path / "deep" / "bench.json")
    assert Results.load(tmp_path / "deep" / "bench.json") == results
    assert tables.tables(results)[0].rows[0][:2] == (floor.FUTEX, "sleeps")


def some_results(trips: dict[str, tuple[float, ...]]) -> Results:
    """Round trips on one core, each contestant with a value for each round."""
    about = {"date": "2026-01-01", "machine": "a machine", "versions": {"python": "3.11"}}
    about |= {"load": [0.0], "rounds": 2, "command": "ropeway bench", "not_installed": {}}
    trial = {"question": "roundtrip", "placement": ONE_CORE, "nbytes": plan.SMALL, "slots": 1}
    records = [
        trial | {"contestant": name, "round": number, "p50_us": value}
        for name, values in trips.items()
        for number, value in enumerate(values, 1)
    ]
    return Results(about, records)
