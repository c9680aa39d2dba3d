"""The demo makes batches in place and learns from them."""

import gc
import mmap
import os
import sys
import time

import numpy as np
import pytest

import ropeway as rw
from ropeway.demo import augment, photos
from ropeway.demo.dataset import TurnedPhotos
from ropeway.demo.handoff import count_in_place, fills_of
from ropeway.demo.network import Network, shrunk
from ropeway.demo.place import Places
from ropeway.demo.trainer import Trainer


@pytest.fixture
def batches(folder):
    """Makes a loader of photos from the folder."""
    loaders = []

    def make(count=24, **options):
        dataset = TurnedPhotos(photos.find_photos(folder).photos, count)
        loaders.append(rw.Loader(dataset, 8, **{"workers": 2, "seed": 0} | options))
        return loaders[-1]

    yield make
    for each in loaders:
        each.close()
    loaders.clear()
    gc.collect()


def test_equal_seeds_make_equal_images_however_many_make_them(batches):
    def made(**options):
        return [(batch.image.copy(), batch.label.copy()) for batch in batches(**options)]

    first, again, alone, other = made(), made(), made(workers=1), made(seed=1)
    for run in (again, alone):
        for (images, labels), (images2, labels2) in zip(first, run, strict=True):
            assert np.array_equal(images, images2)
            assert np.array_equal(labels, labels2)
    labels = np.concatenate([labels for run in (first, other) for _, labels in run])
    assert len(set(labels.tolist())) == 2 * 24


def test_every_image_says_who_made_it_when_and_where(batches):
    begin = time.monotonic_ns()
    loader, places = batches(), Places()
    for batch in loader:
        assert count_in_place(batch.note, batch.image, places.of(batch.image)) == 8
        assert count_in_place(batch.note, batch.image.copy(), None) == 0
        assert count_in_place(batch.note[::-1], batch.image, places.of(batch.image)) == 0
        pids = {worker.number: worker.pid for worker in loader.stats().workers}
        for fill in fills_of(batch.note):
            assert fill.pid == pids[fill.loader]
            assert begin < fill.began < fill.ended < time.monotonic_ns()
        assert sum(fill.images for fill in fills_of(batch.note)) == 8


def test_a_photo_that_was_passed_over_is_told_with_the_batch(batches, folder):
    (folder / "aa.png").write_bytes(b"not a photo")
    assert set().union(*(batch.note["unreadable"].tolist() for batch in batches())) == {-1, 1}


def test_the_trainer_notes_each_batch_and_lets_go_of_it(batches):
    class Guess:
        def step(self, images, labels):
            return np.zeros_like(labels)

    trainer = Trainer(iter(batches(80, prefetch=2)), Guess())
    handoffs = list(iter(trainer.train_on_next, None))
    assert [h.batch for h in handoffs] == list(range(10))
    assert [h.in_place for h in handoffs] == [h.images for h in handoffs] == [8] * 10
    assert len({h.slot for h in handoffs}) <= 4  # two of whole batches, two of those in parts
    for h in handoffs:
        assert h.began < h.ready < h.taken < h.released
        assert 0 < h.loss < 1
        assert 0 < h.error < 45


def test_two_mappings_of_the_same_memory_are_one_place():
    descriptor = os.memfd_create("test")
    os.truncate(descriptor, 8192)
    first, second = (np.frombuffer(mmap.mmap(descriptor, 8192), np.uint8) for _ in range(2))
    os.close(descriptor)
    assert first.ctypes.data != second.ctypes.data
    assert Places().of(first[5000:]) == Places().of(second[5000:])
    assert Places().of(first[5000:]).offset == 5000
    assert Places().of(first) != Places().of(first[1:])


def test_private_memory_is_no_place():
    assert Places().of(np.zeros(10_000_000)) is None


def test_the_gradients_are_those_that_differences_show():
    random = np.random.default_rng(1)
    network = Network(seed=2, side=52, dtype="float64")
    network.layers[-1].parameters[0] *= 10
    images, labels = random.normal(size=(5, 3, 52, 52)), random.normal(size=5)

    def loss():
        return np.mean((network.predict(images) - labels) ** 2)

    network.backward(network.predict(images) - labels)
    for layer in network.layers:
        for parameter, gradient in zip(layer.parameters, layer.gradients, strict=True):
            for index in random.integers(0, parameter.size, 8):
                place = np.unravel_index(index, parameter.shape)
                saved, step = parameter[place], 1e-6
                parameter[place] = saved + step
                above = loss()
                parameter[place] = saved - step
                below = loss()
                parameter[place] = saved
                found = (above - below) / (2 * step)
                assert gradient[place] == pytest.approx(found, rel=1e-4, abs=1e-7)


def test_blocks_of_pixels_are_averaged():
    images = np.random.default_rng(0).random((2, 3, 16, 8), np.float32)
    expected = images.reshape(2, 3, 4, 4, 2, 4).mean((3, 5)).transpose(0, 2, 3, 1)
    np.testing.assert_allclose(shrunk(images), expected, rtol=1e-5)


def test_the_network_learns_how_far_pictures_were_turned(folder):
    photo = photos.decode(folder / "a.png")
    network = Network(seed=0)
    images, labels = np.empty((16, 3, 224, 224), np.float32), np.empty(16, np.float32)
    losses, random = [], np.random.default_rng(0)
    for _ in range(40):
        for row in range(16):
            view = augment.draw_view(photo.size, random)
            augment.write_pixels(np.asarray(augment.look(photo, view)), images[row])
            labels[row] = augment.label_of(view)
        losses.append(np.mean((network.step(images, labels) - labels) ** 2))
    assert np.mean(losses[-10:]) < np.mean(losses[:10]) / 2


def test_learning_leaves_the_images_as_they_are_and_keeps_no_view_of_them():
    images, labels = np.ones((2, 3, 224, 224), np.float32), np.zeros(2, np.float32)
    before = sys.getrefcount(images), sys.getrefcount(labels)
    images.flags.writeable = labels.flags.writeable = False
    predictions = Network().step(images, labels)
    assert predictions.shape == (2,)
    assert (sys.getrefcount(images), sys.getrefcount(labels)) == before
