"""The demo: its parts by themselves, then whole runs through the command line."""

import gc
import math
import mmap
import os
import re
import signal
import subprocess
import sys
import time
from io import StringIO
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import ropeway as rw
from ropeway import cli
from ropeway.demo import DemoError, augment, classic, live, photos, spans, summary, timeline
from ropeway.demo.dataset import TurnedPhotos
from ropeway.demo.handoff import NOTE, Fill, HandOff, count_in_place, fills_of
from ropeway.demo.network import Network, shrunk
from ropeway.demo.place import Place, Places
from ropeway.demo.trainer import Trainer

WATCHDOG = 60.0
SECOND = 1_000_000_000


# photos


@pytest.fixture
def folder(tmp_path):
    """A folder with a few photos: smooth noise, brighter towards the bottom."""
    random = np.random.default_rng(0)
    (tmp_path / "inner").mkdir()
    for number, name in enumerate(["a.png", "b.jpg", "inner/c.png"]):
        noise = random.integers(0, 160, (8, 10, 3), np.uint8)
        noise += np.linspace(0, 90, 8).astype(np.uint8)[:, None, None]
        size = (320 + 40 * number, 300)
        Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC).save(tmp_path / name)
    return tmp_path


def test_photos_are_found_in_a_folder_and_the_folders_in_it(folder):
    (folder / "notes.txt").write_text("no photo")
    names = [path.relative_to(folder).as_posix() for path in photos.find_photos(folder).photos]
    assert names == ["a.png", "b.jpg", "inner/c.png"]


def test_a_folder_without_photos_is_refused_by_name(tmp_path):
    with pytest.raises(DemoError, match=rf"{tmp_path} holds no photo"):
        photos.find_photos(tmp_path)
    with pytest.raises(DemoError, match="is not a folder"):
        photos.find_photos(tmp_path / "nowhere")
    (tmp_path / "moving.gif").touch()
    with pytest.raises(DemoError, match=r"ends in .bmp.*; it holds 1 \.gif"):
        photos.find_photos(tmp_path)


def test_files_that_are_left_out_are_counted_by_kind(folder, monkeypatch):
    for name in ("one.gif", "inner/two.GIF", "notes.txt", "README"):
        (folder / name).touch()
    assert photos.find_photos(folder).left_out == "2 .gif, 1 .txt, 1 without a suffix"
    monkeypatch.setattr(photos, "MOST_PHOTOS", 2)
    found = photos.find_photos(folder)
    assert len(found.photos) == 2
    assert "1 photos after the first 2" in found.left_out


def test_packaged_photos_are_found_without_importing_the_package(folder, monkeypatch):
    data = folder / "site" / "skimage" / "data"
    data.mkdir(parents=True)
    (data.parent / "__init__.py").write_text("raise AssertionError('imported')")
    (folder / "a.png").rename(data / "astronaut.png")
    monkeypatch.setattr(sys, "path", [str(folder / "site")])
    for name in [name for name in sys.modules if name.split(".")[0] in photos.PACKAGED]:
        monkeypatch.delitem(sys.modules, name)
    assert photos.find_photos().photos == [data / "astronaut.png"]


def test_without_packaged_photos_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(photos.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DemoError, match=r"pip install 'ropeway\[demo\]'"):
        photos.find_photos()


def test_an_unreadable_photo_is_passed_over(folder):
    broken = folder / "aa.png"
    broken.write_bytes(b"not a photo")
    found = photos.Photos(photos.find_photos(folder).photos)
    assert found.paths[1] == broken
    assert found[1].tobytes() == photos.decode(folder / "b.jpg").tobytes()
    assert [found.is_unreadable(number) for number in range(4)] == [False, True, False, False]
    assert "aa.png" in photos.unreadable(broken)
    assert photos.unreadable(folder / "b.jpg") == ""


def test_a_photo_is_passed_over_whatever_its_decoder_raises(folder, monkeypatch):
    def decode(path):
        if path.name == "b.jpg":
            raise KeyError("a decoder's own")
        return real(path)

    real = photos.decode
    monkeypatch.setattr(photos, "decode", decode)
    found = photos.Photos(photos.find_photos(folder).photos)
    assert found[1].tobytes() == real(folder / "inner" / "c.png").tobytes()
    assert found.is_unreadable(1)


def test_what_a_decoder_warns_of_is_not_said(folder, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 320 * 300 - 1)
    with pytest.raises(Image.DecompressionBombWarning):
        Image.open(folder / "a.png")
    assert photos.decode(folder / "a.png").size == (320, 300)


def test_nothing_but_unreadable_photos_is_an_error(tmp_path):
    (tmp_path / "a.png").write_bytes(b"not a photo")
    with pytest.raises(DemoError, match=r"none of 1 photos could be read.*a\.png"):
        photos.Photos(photos.find_photos(tmp_path).photos)[0]


@pytest.mark.parametrize("suffix", ["jpg", "png"])
def test_a_large_photo_is_decoded_smaller_and_upright(tmp_path, suffix):
    path = tmp_path / f"large.{suffix}"
    sideways = Image.Exif()
    sideways[0x0112] = 6  # to be turned by 90 degrees
    Image.new("L", (3000, 2000), 77).save(path, exif=sideways)
    photo = photos.decode(path)
    assert photo.mode == "RGB"
    assert photo.height == pytest.approx(photo.width * 1.5, abs=2)
    assert photos.SHORT_SIDE <= photo.width < 2 * photos.SHORT_SIDE


# augmentation


def views(size, count=50):
    random = np.random.default_rng(0)
    return [augment.draw_view(size, random) for _ in range(count)]


def test_the_label_is_the_angle_by_which_the_picture_was_turned():
    ramp = np.tile(np.linspace(0, 255, 400).astype(np.uint8), (300, 1))  # brighter to the right
    photo = Image.fromarray(ramp).convert("RGB")
    for view in views(photo.size):
        pixels = np.asarray(augment.look(photo, view)).astype(float)[..., 0]
        right, down = np.diff(pixels, axis=1).mean(), np.diff(pixels, axis=0).mean()
        found = math.degrees(math.atan2(-down, right))  # counterclockwise
        assert found == pytest.approx(augment.degrees(augment.label_of(view)), abs=1)


def test_labels_fill_the_range_from_minus_one_to_one():
    labels = [augment.label_of(view) for view in views((400, 300), 500)]
    assert min(labels) < -0.95
    assert max(labels) > 0.95
    assert all(-1 <= label <= 1 for label in labels)


@pytest.mark.parametrize("size", [(40, 300), (224, 224), (640, 427)])
def test_no_corner_lies_outside_the_photo(size):
    photo = Image.new("RGB", size, "white")
    for view in views(size):
        assert np.asarray(augment.look(photo, view)).min() == 255


def test_pixels_become_numbers_from_minus_one_to_one():
    pixels = np.zeros((2, 2, 3), np.uint8)
    pixels[0, 1] = 255, 127, 0
    image = np.empty((3, 2, 2), np.float32)
    augment.write_pixels(pixels, image)
    assert image[:, 0, 1] == pytest.approx([1, -1 / 255, -1], abs=1e-6)


# the dataset


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


# the network


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


# places


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


# what a run showed


def handoff(batch, *, filled, trained, slot=0, loader=0, in_place=32, loss=0.3):
    return HandOff(
        batch,
        (Fill(loader, 100 + loader, 32, *filled, 9),),
        slot=slot,
        images=32,
        nbytes=1000,
        asked=trained[0],
        taken=trained[0],
        released=trained[1],
        faults=3,
        place=Place(1, 7, 4096),
        in_place=in_place,
        unreadable=frozenset(),
        loss=loss,
        error=10.0,
    )


def run_of(count, loaders=2):
    """Hand-offs as a run of `count` batches might give them, 0.1 s each."""
    tenth = SECOND // 10
    return [
        handoff(
            n,
            filled=((n - 1) * tenth, n * tenth + tenth // 2),
            trained=((n + 1) * tenth, (n + 2) * tenth - 1),
            slot=n % 4,
            loader=n % loaders,
            loss=0.33 - n / 200,
        )
        for n in range(count)
    ]


def stats_of(waited, share, endings=()):
    """What a loader says whose consumer has waited for so long of 10 s."""
    worker = rw.WorkerStats(0, 100, 10 * share, share, 5, 160, 0, 0)
    return rw.LoaderStats(10.0, 5, 160, 5000, waited, 10 * (1 - share), 0, (worker,), endings)


def test_a_batch_made_by_several_tells_who_had_a_part_in_it():
    notes = np.zeros(6, NOTE)
    notes["pid"] = [7, 7, 9, 9, 9, 7]
    notes["loader"] = [0, 0, 1, 1, 1, 0]
    notes["began"] = [10, 20, 11, 15, 19, 30]
    notes["ended"] = [20, 30, 15, 19, 25, 45]
    notes["faults"] = [5, 0, 1, 1, 1, 3]
    assert fills_of(notes) == (Fill(0, 7, 3, 10, 45, 8), Fill(1, 9, 3, 11, 25, 3))


def test_overlap_is_the_share_of_training_during_which_a_loader_fills():
    taking_turns = [
        handoff(n, filled=(2 * n, 2 * n + 1), trained=(2 * n + 1, 2 * n + 2)) for n in range(3)
    ]
    assert spans.overlap(taking_turns) == 0
    half = [
        handoff(0, filled=(0, 10), trained=(10, 20)),
        handoff(1, filled=(5, 15), trained=(20, 30)),
    ]
    assert spans.overlap(half) == pytest.approx(0.25)
    assert spans.overlap([handoff(0, filled=(0, 9), trained=(2, 5))]) == 1


def test_a_slots_row_has_no_gap():
    for row in spans.slot_rows(run_of(20)).values():
        assert all(before.end == after.start for before, after in pairwise(row))


def test_the_verdict_names_the_side_that_holds_the_other_up():
    def said(stats):
        return "\n".join(summary.summary(run_of(5), stats, [], 0, Path("x.png")))

    slow_loader = said(stats_of(6.0, 0.98))
    assert "waiting      trainer 60% of its time, loaders 2% of theirs" in slow_loader
    assert "verdict      loader-bound" in slow_loader
    slow_trainer = said(stats_of(0.1, 0.5))
    assert "waiting      trainer 1% of its time, loaders 50% of theirs" in slow_trainer
    assert "verdict      consumer-bound" in slow_trainer


def test_bytes_are_said_to_be_uncopied_only_if_every_image_shows_it():
    run = run_of(3)
    assert summary.copied_line(run).startswith("0 bytes")
    run[1] = run[1]._replace(in_place=31)
    assert summary.copied_line(run).startswith("unknown: only 95 of 96 images")


def test_page_faults_in_new_slots_are_told_apart():
    run = [h._replace(faults=500 if n < 4 else 2) for n, h in enumerate(run_of(12))]
    line = summary.faults_line(run)
    assert "writing 9 (9 in a slot met first), trainer 2 (500 in a slot met first)" in line


def test_the_summary_names_who_was_killed_and_who_took_over():
    ending = rw.WorkerEnding(1, 101, -signal.SIGSEGV, 1.55)
    run = run_of(30)
    for n in range(17, 30, 2):
        fill = run[n].fills[0]._replace(pid=4712)
        run[n] = run[n]._replace(fills=(fill,))
    death = summary.death(ending, run)
    told = "replaced     at 1.6 s loader 1 (pid 101) was killed by SIGSEGV; "
    lines = summary.summary(run, stats_of(1.0, 0.5), [death], 0, Path("x.png"))
    assert told + "pid 4712 took over with batch 17" in lines
    unneeded = summary.death(ending, run[:16])
    lines = summary.summary(run, stats_of(1.0, 0.5), [unneeded], 0, Path("x.png"))
    assert told + "the one in its place had nothing to do any more" in lines
    assert summary.summary([], None, [], 0, Path("x.png")) == [
        "images       none: no batch was handed over"
    ]


def test_the_line_counts_slots_by_place_and_says_who_waits():
    run = [
        handoff(0, filled=(0, 10), trained=(50, 60)),
        handoff(1, filled=(10, 40), trained=(60, 70)),
        handoff(2, filled=(40, 55), trained=(70, 80)),
        handoff(3, filled=(55, 70), trained=(80, 90)),
    ]
    assert "1 free 1 fill 1 ready 1 train" in live.line(run, 4, 2, 0.5)
    assert live.line(run[:3], 4, 2, 0.5) == "0s starting"
    busy = [
        handoff(n, filled=(10 * n, 10 * n + 10), trained=(10 * n, 10 * n + 10)) for n in range(9)
    ]
    assert "nobody waits" in live.line(busy, 4, 1, 99.0)
    assert "loaders wait 50%" in live.line(busy, 4, 2, 99.0)
    hungry = [h._replace(taken=h.taken + 8) for h in busy]
    assert "trainer waits 78%" in live.line(hungry, 4, 1, 99.0)
    assert re.search(r"\d+ images/s .* GB/s, .* loss 0\.258", live.line(run_of(30), 4, 2, 3.0))


def test_the_line_stays_in_place_on_a_terminal_only():
    out = StringIO()
    plain = live.LiveLine(out)
    assert not plain.due()
    plain.show("one")
    plain.clear()
    assert out.getvalue() == "one\n"
    out = StringIO()
    out.isatty = lambda: True
    terminal = live.LiveLine(out)
    assert terminal.due()
    terminal.show("x" * 1000)
    terminal.clear()
    assert "\n" not in out.getvalue()
    assert out.getvalue().count("\r") == 2


def test_the_timeline_is_a_png_with_all_stages_in_it(tmp_path):
    run = run_of(40)
    death = summary.Death(2 * SECOND, 1, 4711, "was killed by SIGKILL", 4712, 33)
    timeline.draw(run, [death], 0).save(tmp_path / "timeline.png")
    with Image.open(tmp_path / "timeline.png") as picture:
        assert picture.format == "PNG"
        assert picture.width == timeline.WIDTH
        rows = 4 + 3  # slots and processes
        assert picture.height > 2 * rows * timeline.ROW
        colours = {colour for _, colour in picture.convert("RGB").getcolors(1 << 24)}
    drawn = [*timeline.COLOURS.values(), timeline.DEAD]
    assert all(tuple(bytes.fromhex(colour[1:])) in colours for colour in drawn)


def test_a_timeline_of_one_hand_off_is_drawn():
    assert timeline.draw(run_of(1), [], 0).width == timeline.WIDTH


# the command line


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--classic", "somewhere"], "ropeway demo --classic takes no FOLDER"),
        (["--classic", "--batch-size", "8"], "ropeway demo --classic takes no --batch-size"),
        (["--rounds", "3"], "ropeway demo without --classic takes no --rounds"),
        (["--classic", "--elements", str(2**31)], "--elements must be below"),
        (["--timeline", "/nowhere/x.png"], "/nowhere is not a folder that can be written to"),
        (["--timeline", "/"], "what is there is not a file that can be written to"),
        (["/nowhere"], "/nowhere is not a folder: give one that holds photos"),
    ],
)
def test_options_that_cannot_be_are_refused_with_one_sentence(arguments, complaint, capsys):
    assert cli.main(["demo", *arguments]) == 1
    said = capsys.readouterr().err
    assert complaint in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_a_framework_that_is_not_installed_is_asked_for_with_one_sentence(
    framework, folder, capsys, monkeypatch
):
    monkeypatch.setitem(sys.modules, framework, None)
    assert cli.main(["demo", str(folder), "--framework", framework]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"ropeway: --framework {framework} needs {framework}, which isn't inst")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        *(["--slots", "0"], ["--slots", "1e3"], ["--slots", "1,001"], ["--loaders", "-1"]),
        *(["--seconds", "nan"], ["--seconds", "inf"], ["--seconds", "0"], ["--seed", "-1"]),
        *(["--batch-size", "5000"], ["--batches", "9" * 30], ["--framework", "mxnet"]),
        *(["--timeline"], ["--nonsense"], ["--classic", "--elements", "0"]),
    ],
)
def test_numbers_out_of_bounds_are_refused_before_the_run(arguments, capsys):
    with pytest.raises(SystemExit) as refusal:
        cli.main(["demo", *arguments])
    assert refusal.value.code == 2
    assert "error: " in capsys.readouterr().err.splitlines()[-1]


def test_a_command_has_to_be_given():
    with pytest.raises(SystemExit) as refusal:
        cli.main([])
    assert refusal.value.code == 2


# whole runs


class Demo:
    """A run of `ropeway demo` in its own process group."""

    def __init__(self, *arguments):
        command = [sys.executable, "-m", "ropeway_command", "demo", *map(str, arguments)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, stdout=pipe, stderr=pipe, text=True, start_new_session=True
        )

    def finish(self):
        """Waits for the end; gives exit status, output and errors."""
        try:
            out, err = self.process.communicate(timeout=WATCHDOG)
        finally:
            self.process.kill()
        return self.process.returncode, out, err

    def children(self):
        """The spawned processes, in the order of their start."""
        return [pid for pid in children_of(self.process.pid) if b"spawn_main" in command_of(pid)]

    def loaders(self):
        """The loader processes, children of the one that the trainer has for starting them."""
        starters = [pid for trainer in self.children() for pid in children_of(trainer)]
        return [loader for starter in starters for loader in children_of(starter)]

    def at_work(self, processes, number, seconds):
        """Waits until the numbered one of the processes has computed for so long; gives its pid."""
        end = time.monotonic() + WATCHDOG
        while time.monotonic() < end:
            found = processes()
            if len(found) > number and cpu_seconds(found[number]) > seconds:
                return found[number]
            time.sleep(0.02)
        raise AssertionError(f"process {number} did nothing")


def children_of(pid):
    """The children of a process, in the order of their start; none if it has gone."""
    try:
        return [*map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    except (FileNotFoundError, ProcessLookupError):
        return []


def command_of(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def cpu_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.fixture
def demo(tmp_path):
    """Starts runs and ends what is left of them."""
    started = []

    def start(*arguments):
        started.append(Demo(*arguments))
        return started[-1]

    yield start
    for run in started:
        run.process.kill()
        run.process.communicate()


def test_a_run_hands_all_batches_over_in_place_and_draws_them(demo, folder):
    picture = folder / "out.png"
    run = demo(folder, "--batches", 12, "--batch-size", 8, "--timeline", picture)
    status, out, err = run.finish()
    assert (status, err) == (0, "")
    assert "hand-offs    12," in out
    assert "0 bytes by ropeway: in all 12 hand-offs" in out
    assert re.search(r"verdict +(loader|consumer)-bound", out)
    with Image.open(picture) as drawn:
        assert drawn.width == timeline.WIDTH


def test_a_run_for_some_seconds_ends_by_itself(demo, folder):
    run = demo(folder, "--seconds", 3, "--batch-size", 8, "--timeline", folder / "out.png")
    status, out, err = run.finish()
    assert (status, err) == (0, "")
    assert "images/s" in out


def test_a_killed_loader_is_replaced_and_training_goes_on_as_if_undisturbed(demo, folder):
    def finished(run):
        status, out, err = run.finish()
        assert (status, err) == (0, "")
        assert "hand-offs    60," in out
        return out

    def loss(out):
        return re.search("^loss .*", out, re.MULTILINE)[0]

    picture = folder / "timeline"  # no name that the next run takes for one of the photos
    arguments = folder, "--batches", 60, "--batch-size", 8, "--timeline", picture
    run = demo(*arguments)
    victim = run.at_work(run.loaders, 0, 0.3)
    os.kill(victim, signal.SIGKILL)
    out = finished(run)
    assert re.search(rf"\(pid {victim}\) was killed by SIGKILL.*; pid \d+ took over", out)
    assert loss(out) == loss(finished(demo(*arguments)))


def test_a_killed_trainer_ends_the_run_with_a_sentence(demo, folder):
    run = demo(folder, "--seconds", 50, "--batch-size", 8, "--timeline", folder / "out.png")
    loaders = [run.at_work(run.loaders, number, 0.1) for number in range(2)]
    os.kill(run.at_work(run.children, 0, 0.5), signal.SIGKILL)
    status, _, err = run.finish()
    assert (status, err) == (1, "ropeway: the trainer was killed by SIGKILL\n")
    assert_gone(loaders)


@pytest.mark.parametrize("seconds", [0.0, 0.1, 1.0])
def test_an_interrupt_ends_everything_with_one_line(demo, folder, seconds):
    run = demo(folder, "--seconds", 50, "--batch-size", 8, "--timeline", folder / "out.png")
    run.at_work(run.children, 0, seconds)
    processes = run.children() + run.loaders()
    os.killpg(run.process.pid, signal.SIGINT)
    status, out, err = run.finish()
    assert (status, err) == (130, "")
    assert re.fullmatch(r"photos: .*\n(.* (free|starting).*\n)*stopped after .*\n", out)
    assert_gone(processes)


def assert_gone(processes):
    """Waits until the processes have ended."""
    end = time.monotonic() + WATCHDOG
    while left := [pid for pid in processes if command_of(pid)]:
        assert time.monotonic() < end, f"{left} are left"
        time.sleep(0.01)


def test_classic_hands_over_what_was_filled_in(demo):
    status, out, err = demo("--classic", "--elements", 1_000_003, "--rounds", 5).finish()
    assert (status, err) == (0, "")
    total = sum(range(1_000_003)) * 5 + 1_000_003 * sum(range(5))
    assert f"checksum {total:,} over 5,000,015 elements, as expected" in out
    assert "the loader ended cleanly, the processor ended cleanly" in out


def test_classic_stops_cleanly(demo):
    run = demo("--classic", "--elements", 2_000_000, "--rounds", 1_000_000)
    run.at_work(run.children, 1, 0.5)
    os.killpg(run.process.pid, signal.SIGINT)
    status, out, err = run.finish()
    assert (status, err) == (130, "")
    assert "as expected" in out
    assert "the loader ended cleanly, the processor ended cleanly" in out


def test_an_array_is_left_within_a_step_of_the_stop():
    class Closing:
        looks = 0

        @property
        def closed(self):
            self.looks += 1
            return self.looks > 3

    array = np.zeros(10 * classic.STEP, np.int32)
    assert classic.fill(array, 0, Closing()).elements == 3 * classic.STEP
    assert not array[3 * classic.STEP :].any()
    assert classic.consume(array, 0, Closing()).elements == 3 * classic.STEP
