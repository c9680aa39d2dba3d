"""Arguments, attributes and lengths are torch's; `kind` runs each test for both loaders."""

import multiprocessing
import os
import pickle
import warnings

import pytest
import sets
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    dataloader,
    default_collate,
    default_convert,
)

import ropeway.torch

DATA = sets.Numbers(10)
STREAM = sets.Stream(10)


def test_it_is_a_dataloader():
    """A17."""
    loader = ropeway.torch.DataLoader(DATA)
    assert isinstance(loader, DataLoader)
    assert ropeway.torch.DataLoader[int]
    assert type(loader).__name__ == "DataLoader"


def test_positional_arguments_have_torchs_order(kind):
    """A1."""
    generator = torch.Generator()
    loader = kind(
        DATA, 2, False, None, None, 1, list, False, True, 5, print, "spawn", generator,
        prefetch_factor=3, persistent_workers=True, pin_memory_device="", in_order=False,
    )  # fmt: skip
    assert (loader.dataset, loader.batch_size, loader.num_workers) == (DATA, 2, 1)
    assert (loader.collate_fn, loader.pin_memory, loader.drop_last) == (list, False, True)
    assert (loader.timeout, loader.worker_init_fn, loader.generator) == (5, print, generator)
    assert loader.multiprocessing_context.get_start_method() == "spawn"
    assert (loader.prefetch_factor, loader.persistent_workers) == (3, True)
    assert (loader.pin_memory_device, loader.in_order) == ("", False)


@pytest.mark.parametrize(
    ("error", "options"),
    [
        (ValueError, {"num_workers": -1}),  # A2
        (ValueError, {"timeout": -1}),  # A3
        (ValueError, {"prefetch_factor": 2}),  # A4
        (ValueError, {"prefetch_factor": -2, "num_workers": 1}),
        (ValueError, {"persistent_workers": True}),  # A5
        (ValueError, {"multiprocessing_context": "spawn"}),  # A6
        (ValueError, {"multiprocessing_context": "bad", "num_workers": 1}),
        (TypeError, {"multiprocessing_context": 3, "num_workers": 1}),
        (ValueError, {"dataset": STREAM, "shuffle": True}),  # A7
        (ValueError, {"dataset": STREAM, "shuffle": 3}),
        (ValueError, {"dataset": STREAM, "sampler": [1]}),
        (ValueError, {"dataset": STREAM, "batch_sampler": [[1]]}),
        (ValueError, {"dataset": STREAM, "sampler": [1], "batch_sampler": [[1]]}),
        (ValueError, {"sampler": [1], "shuffle": True}),  # A8
        (ValueError, {"sampler": [1], "shuffle": True, "batch_sampler": [[1]]}),
        (ValueError, {"batch_sampler": [[1]], "batch_size": 2}),  # A9
        (ValueError, {"batch_sampler": [[1]], "shuffle": True}),
        (ValueError, {"batch_sampler": [[1]], "sampler": [1]}),
        (ValueError, {"batch_sampler": [[1]], "drop_last": 1}),
        (ValueError, {"batch_size": None, "drop_last": True}),  # A10
        (ValueError, {"dataset": [], "shuffle": True}),  # A11
        (ValueError, {"batch_size": 0}),  # A12
        (ValueError, {"batch_size": True}),
        (ValueError, {"batch_size": 1.5}),
        (ValueError, {"drop_last": 1}),
        (TypeError, {"what": 1}),
    ],
)
def test_bad_arguments_are_refused_with_torchs_words(error, options):
    texts = []
    for kind in (DataLoader, ropeway.torch.DataLoader):
        with pytest.raises(error) as caught:
            kind(**{"dataset": DATA, **options})
        texts.append(str(caught.value))
    assert texts[0] == texts[1]


@pytest.mark.parametrize("retries", [-1, 201, "2", None])
def test_bad_retries_are_refused(retries):
    with pytest.raises(ValueError, match="retries must be an int from 0 to 200"):
        ropeway.torch.DataLoader(DATA, retries=retries)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_prefetch_factor_0_fails_with_the_iterator(kind):
    """A4."""
    loader = kind(DATA, num_workers=1, prefetch_factor=0)
    with pytest.raises(AssertionError, match="prefetch_factor must be greater than 0"):
        iter(loader)


def test_the_context_is_checked_when_it_is_assigned(kind):
    """A6."""
    loader = kind(DATA, num_workers=1)
    assert loader.multiprocessing_context is None
    loader.multiprocessing_context = "fork"
    assert isinstance(loader.multiprocessing_context, multiprocessing.context.ForkContext)
    with pytest.raises(ValueError, match="valid start method"):
        loader.multiprocessing_context = "bad"
    with pytest.raises(TypeError, match="valid context object"):
        loader.multiprocessing_context = 3


def test_defaults(kind):
    """A8, A9, A11, A12, A13."""
    loader = kind(DATA)
    assert type(loader.sampler) is SequentialSampler
    assert loader.collate_fn is default_collate
    assert type(loader.batch_sampler) is BatchSampler
    assert loader.batch_size == 1
    assert loader._auto_collation
    assert loader._index_sampler is loader.batch_sampler
    assert (loader.prefetch_factor, loader.timeout, loader.in_order) == (None, 0, True)
    assert loader._iterator is None
    assert loader.num_workers == 0
    assert kind(DATA, num_workers=1).prefetch_factor == 2
    generator = torch.Generator()
    shuffled = kind(DATA, shuffle="yes", generator=generator)
    assert type(shuffled.sampler) is RandomSampler
    assert shuffled.sampler.generator is generator
    single = kind(DATA, batch_size=None)
    assert single.collate_fn is default_convert
    assert single.batch_sampler is None
    batched = kind(DATA, batch_sampler=[[1, 2]])
    assert (batched.batch_size, batched.drop_last) == (None, False)
    stream = kind(STREAM, shuffle=False)
    assert next(iter(stream.sampler)) is None


def test_more_workers_than_cores_are_warned_of(kind):
    """A14."""
    many = len(os.sched_getaffinity(0)) + 1
    with pytest.warns(UserWarning, match=f"will create {many} worker processes"):
        loader = kind(DATA, 5, num_workers=many)
    with pytest.warns(UserWarning, match=f"will create {many} worker processes"):
        iterator = iter(loader)
    assert len(list(iterator)) == 2


@pytest.mark.parametrize(
    "name", ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"]
)
def test_what_must_not_be_assigned_afterwards(kind, name):
    """A15."""
    loader = kind(DATA)
    with pytest.raises(ValueError, match=f"{name} attribute should not be set after DataLoader"):
        setattr(loader, name, None)
    loader.timeout, loader.num_workers, loader.anything = 3, 1, 5


def test_a_loader_pickles(kind):
    loader = pickle.loads(pickle.dumps(kind(DATA, 4)))
    assert [batch["label"].tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_an_iterator_has_torchs_attributes_and_does_not_pickle(kind):
    """A16, C6."""
    iterator = iter(kind(DATA, 2, num_workers=2))
    assert len(iterator) == 5
    assert iterator._num_yielded == 0
    assert len(iterator._workers) == len(iterator._index_queues) == 2
    assert iterator._tasks_outstanding == 4
    assert next(iterator._sampler_iter) == [8, 9]
    assert not hasattr(iterator, "_pin_memory_thread")  # there is one where there is pinning
    assert isinstance(iterator._base_seed, int)
    assert all(w.is_alive() and w.pid and w.exitcode is None for w in iterator._workers)
    with pytest.raises(NotImplementedError):
        pickle.dumps(iterator)
    next(iterator)
    assert iterator._num_yielded == 1
    assert "#_MultiProcessingDataLoaderIter.__next__" in iterator._profile_name
    iterator._shutdown_workers()
    assert [w.exitcode for w in iterator._workers] == [0, 0]
    assert not any(w.is_alive() for w in iterator._workers)


def test_without_workers_an_iterator_has_a_length_too(kind):
    """C6."""
    iterator = iter(kind(DATA, 3))
    assert len(iterator) == 4
    with pytest.raises(NotImplementedError):
        pickle.dumps(iterator)


def test_a_length_that_was_asked_for_is_noted(kind):
    """A16."""
    loader = kind(sets.Stream(10, 7), 2)
    assert loader._IterableDataset_len_called is None
    assert len(loader) == 4
    assert loader._IterableDataset_len_called == 7
    kinds = [kind(data)._dataset_kind for data in (DATA, STREAM)]
    assert kinds == [dataloader._DatasetKind.Map, dataloader._DatasetKind.Iterable]


@pytest.mark.parametrize("workers", [0, 1])
def test_lengths(kind, workers):
    """B1, B2."""
    data = list(range(10))
    loader = kind(data, 3, num_workers=workers)
    assert len(loader) == 4
    data += [10, 11, 12]
    assert len(loader) == 5
    assert len(list(loader)) == 5
    assert len(kind(data, 3, drop_last=True)) == 4
    assert len(kind(data, None)) == 13
    assert len(kind(data, batch_sampler=[[1], [2]])) == 2
    assert len(kind(sets.Stream(10, 10), 4)) == 3
    assert len(kind(sets.Stream(10, 10), 4, drop_last=True)) == 2
    with pytest.raises(TypeError):
        len(kind(sets.Stream(10), 4))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_that_is_longer_than_it_said_is_warned_of(kind, workers):
    """B3."""
    loader = kind(sets.Stream(5, 3), None, num_workers=workers)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(loader)) == 5
    assert len(loader) == 3
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert len(list(loader)) == 5
    said = [str(warning.message) for warning in caught]
    found = [text for text in said if "reported to be 3" in text]
    assert [n for n in (4, 5) for text in found if f"{n} samples have been" in text] == [4, 5]
    assert all(("replica at each worker" in text) == (workers > 0) for text in found)


def test_timeout_needs_workers(kind):
    """C2."""
    with pytest.raises(AssertionError, match="requires timeout == 0"):
        iter(kind(DATA, timeout=1))


def test_tensor_datasets_and_plain_lists(kind):
    """D10."""
    data = TensorDataset(torch.arange(6000.0).view(6, 1000), torch.arange(6))
    one, two = kind(data, 3, num_workers=1)
    assert torch.equal(torch.cat([one[0], two[0]]), data.tensors[0])
    assert [b.tolist() for b in kind(list(range(5)), 2, num_workers=1)] == [[0, 1], [2, 3], [4]]
