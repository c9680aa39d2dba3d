"""What happens in the program's own process: without workers, around them, and at its end."""

import gc
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import sets
import torch
from alike import assert_alike, taken
from torch.utils.data import DataLoader as Theirs
from torch.utils.data import datapipes, get_worker_info

from ropeway.torch import DataLoader as Ours

WATCHDOG = 80


class Refusing(sets.Stream):
    def __iter__(self):
        raise ValueError("not to be read")


def test_without_workers_a_stream_begins_with_its_iterator(kind):
    """C1."""
    loader = kind(Refusing(4))
    with pytest.raises(ValueError, match="not to be read"):
        iter(loader)
    loader = kind(sets.Numbers(4))
    assert iter(loader) is not iter(loader)


def test_without_workers_exceptions_are_as_they_are_and_the_rest_comes(kind):
    """C3."""
    error = ValueError("as it is")
    iterator = iter(kind(sets.Failing(error, [1], 3), None))
    assert next(iterator)[0] == 0
    with pytest.raises(ValueError, match="as it is") as caught:
        next(iterator)
    assert caught.value is error
    assert [row[0] for row in iterator] == [2]


@pytest.mark.parametrize("workers", [0, 1])
def test_only_a_worker_knows_of_one(kind, workers):
    """C5, D5: also while samples are collated, and with nothing that could be assigned to."""
    (batch,) = kind(sets.Numbers(2), 2, num_workers=workers, collate_fn=about_this_worker)
    if not workers:
        assert batch is None
        return
    assert batch == (0, 1, None, "multiprocessing", "FrozenInstanceError")
    assert get_worker_info() is None


def about_this_worker(samples):
    """A collate function that says where it is."""
    info = get_worker_info()
    if info is None:
        return None
    try:
        info.id = 3
    except AttributeError as error:
        return info.id, info.num_workers, info.rng, info.worker_method, type(error).__name__
    return None


@pytest.mark.filterwarnings("ignore:.*deprecated")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_datapipe_may_be_shuffled(workers):
    """A7."""
    results = []
    for kind in (Theirs, Ours):
        torch.manual_seed(7)
        pipe = datapipes.iter.IterableWrapper(range(20)).shuffle().sharding_filter()
        loader = kind(pipe, 4, shuffle=True, num_workers=workers)
        results.append([taken(loader), taken(loader)])
    assert_alike(*results)
    first, second = ([i for batch in epoch for i in batch.tolist()] for epoch in results[1])
    assert sorted(first) == sorted(second) == list(range(20))
    assert first != second


def test_large_keys_do_not_hold_up_the_end(kind):
    """D19."""
    iterator = iter(kind(sets.Numbers(10), batch_sampler=[range(10)] * 100_000, num_workers=2))
    next(iterator)
    del iterator


@pytest.mark.parametrize("persistent", [True, False])
def test_a_forked_child_leaves_its_parents_iterator_alone(capfd, persistent):
    """With torch's loader the child ends the workers, and complains that they aren't its own."""
    loader = Ours(sets.Numbers(40), 4, num_workers=2, persistent_workers=persistent)
    iterator = iter(loader)
    found = next(iterator)["label"].tolist()
    child = os.fork()
    if not child:
        status = 1
        try:
            with pytest.raises(RuntimeError, match="belongs to the parent"):
                next(iterator)
            loader._iterator = None
            del iterator
            gc.collect()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    for batch in iterator:
        found += batch["label"].tolist()
    assert found == list(range(40))
    iterator._shutdown_workers()
    assert capfd.readouterr().err == ""


PROGRAM = """
import sys
import torch
{line}
if __name__ == "__main__":
    iterator = iter(DataLoader(range(100_000), 4, num_workers=2, persistent_workers={persistent}))
    next(iterator)
    {then}
"""


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize(
    ("then", "returncode"), [("pass", 0), ("sys.kept = iterator", 0), ("raise KeyError(3)", 1)]
)
def test_a_program_ends_with_an_iterator_in_the_middle(tmp_path, then, returncode, persistent):
    """D19; torch's may leave what its threads had to say."""
    program = tmp_path / "program.py"
    line = "from ropeway.torch import DataLoader"
    text = PROGRAM.format(line=line, then=then, persistent=persistent)
    program.write_text(textwrap.dedent(text))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", program],
        capture_output=True,
        text=True,
        timeout=WATCHDOG,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(sys.modules["ropeway"].__file__).parents[1])},
    )
    assert done.returncode == returncode, done.stderr
    assert done.stderr.count("Traceback") == returncode
    assert done.stderr.rstrip().endswith("KeyError: 3" if returncode else "")
