"""The demo: its parts by themselves, then whole runs through the command line."""

import json
import math
import mmap
import os
import re
import signal
import subprocess
import sys
import time
from io import StringIO
from itertools import islice, pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from ropeway import cli
from ropeway.demo import DemoError, augment, classic, live, loader, photos, spans, summary, timeline
from ropeway.demo.handoff import Fill, HandOff, packed, unpacked
from ropeway.demo.network import Network, shrunk
from ropeway.demo.place import Place, Places, place_of

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
    names = [path.relative_to(folder).as_posix() for path in photos.find_photos(folder)]
    assert names == ["a.png", "b.jpg", "inner/c.png"]


def test_a_folder_without_photos_is_refused_by_name(tmp_path):
    with pytest.raises(DemoError, match=rf"{tmp_path} holds no photo"):
        photos.find_photos(tmp_path)
    with pytest.raises(DemoError, match="is not a folder"):
        photos.find_photos(tmp_path / "nowhere")


def test_packaged_photos_are_found_without_importing_the_package(folder, monkeypatch):
    data = folder / "site" / "skimage" / "data"
    data.mkdir(parents=True)
    (data.parent / "__init__.py").write_text("raise AssertionError('imported')")
    (folder / "a.png").rename(data / "astronaut.png")
    monkeypatch.setattr(sys, "path", [str(folder / "site")])
    for name in [name for name in sys.modules if name.split(".")[0] in photos.PACKAGED]:
        monkeypatch.delitem(sys.modules, name)
    assert photos.find_photos() == [data / "astronaut.png"]


def test_without_packaged_photos_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(photos.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DemoError, match=r"pip install 'ropeway\[demo\]'"):
        photos.find_photos()


def test_an_unreadable_photo_is_passed_over(folder):
    broken = folder / "aa.png"
    broken.write_bytes(b"not a photo")
    found = photos.Photos(photos.find_photos(folder))
    assert found.paths[1] == broken
    assert found[1].tobytes() == photos.decode(folder / "b.jpg").tobytes()
    assert list(found.unreadable) == [broken]


def test_nothing_but_unreadable_photos_is_an_error(tmp_path):
    (tmp_path / "a.png").write_bytes(b"not a photo")
    with pytest.raises(DemoError, match=r"none of 1 photos could be read.*a\.png"):
        photos.Photos(photos.find_photos(tmp_path))[0]


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
    return [augment.draw_view(size, augment.random_of(0, 0, row)) for row in range(count)]


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


def test_equal_numbers_make_equal_images_and_others_make_others(folder):
    found = photos.Photos(photos.find_photos(folder))
    images = {
        key: loader.turned(found, augment.random_of(*key))
        for key in [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0)]
    }
    again, label = loader.turned(found, augment.random_of(0, 1, 0))
    assert np.array_equal(again, images[0, 1, 0][0])
    assert label == images[0, 1, 0][1]
    assert len({label for _, label in images.values()}) == 4


# batch numbers


@pytest.mark.parametrize("loaders", [1, 2, 3, 7])
def test_the_streams_of_all_loaders_hold_each_batch_once(loaders):
    numbers = [n for k in range(loaders) for n in loader.stream(k, loaders, 20)]
    assert sorted(numbers) == list(range(20))


def test_a_stream_without_an_end_goes_on():
    assert list(islice(loader.stream(1, 3, None), 4)) == [1, 4, 7, 10]


def test_who_takes_over_goes_on_after_the_last_batch_published():
    before = list(islice(loader.stream(1, 2, 20), 4))
    after = list(loader.stream(before[-1] + 2, 2, 20))
    assert before + after == list(loader.stream(1, 2, 20))


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
    losses = []
    for batch in range(40):
        for row in range(16):
            view = augment.draw_view(photo.size, augment.random_of(0, batch, row))
            pixels = np.asarray(augment.look(photo, view))
            loader.write_row(images, labels, row, pixels, augment.label_of(view))
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
    assert place_of(np.zeros(10_000_000).ctypes.data) is None


# what a run showed


def handoff(batch, *, filled, trained, slot=0, loader=0, place="there", loss=0.3):
    where = Place("00:01", 7, 4096) if place == "there" else None
    fill = Fill(batch, loader, 100 + loader, filled[0], filled[0], filled[1], 9, where)
    return HandOff(
        fill,
        slot=slot,
        images=32,
        nbytes=1000,
        asked=trained[0],
        taken=trained[0],
        released=trained[1],
        faults=3,
        place=Place("00:01", 7, 4096),
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


def test_the_loaders_half_survives_the_slots_meta():
    for place in ("there", "nowhere"):
        fill = handoff(1, filled=(1, 2), trained=(3, 4), place=place).fill
        assert unpacked(json.loads(json.dumps(packed(fill)))) == fill


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
    slow_loader = [
        handoff(n, filled=(10 * n, 10 * n + 9), trained=(10 * n + 9, 10 * n + 10)) for n in range(5)
    ]
    slow_loader = [h._replace(asked=h.taken - 8) for h in slow_loader]
    assert summary.verdict(slow_loader).startswith("loader-bound")
    slow_trainer = [h._replace(asked=h.taken) for h in slow_loader]
    slow_trainer = [
        h._replace(fill=h.fill._replace(asked=h.fill.acquired - 8)) for h in slow_trainer
    ]
    assert summary.verdict(slow_trainer).startswith("consumer-bound")


def test_bytes_are_said_to_be_uncopied_only_if_every_hand_off_shows_it():
    run = run_of(3)
    assert summary.copied_line(run).startswith("0 bytes")
    run[1] = run[1]._replace(place=Place("00:01", 7, 0))
    assert summary.copied_line(run).startswith("unknown: only in 2 of 3")
    run[1] = run[1]._replace(place=None, fill=run[1].fill._replace(place=None))
    assert summary.copied_line(run).startswith("unknown")


def test_the_summary_names_who_was_killed_and_who_took_over():
    death = summary.Death(2 * SECOND, 1, 4711, "was killed by SIGKILL", 4712, 33)
    lines = summary.summary(run_of(30), [death], 0, Path("x.png"))
    assert (
        "replaced     loader 1 (pid 4711) was killed by SIGKILL at 2.0 s; "
        "pid 4712 took over at batch 33" in lines
    )
    assert summary.summary([], [], 0, Path("x.png")) == [
        "images       none: no batch was handed over"
    ]


def test_the_line_counts_slots_by_place_and_says_who_waits():
    moments = [("fill", "idle"), ("fill", "held-write"), ("use", "idle"), ("use", "held-read")]
    status = SimpleNamespace(slots=[SimpleNamespace(stage=a, state=b) for a, b in moments])
    assert "1 free 1 fill 1 ready 1 train" in live.line([], status, 0.5)
    text = live.line(run_of(30), status, 3.0)
    slow = [handoff(0, filled=(0, 1), trained=(1, 99 * SECOND))]
    assert "nobody waits" in live.line(slow, status, 99.0)
    assert re.search(r"\d+ images/s .* GB/s, .* waits?[ ,]", text)


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
        (["/nowhere"], "/nowhere is not a folder: give one that holds photos"),
    ],
)
def test_options_that_cannot_be_are_refused_with_one_sentence(arguments, complaint, capsys):
    assert cli.main(["demo", *arguments]) == 1
    said = capsys.readouterr().err
    assert complaint in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("arguments", [[], ["demo", "--slots", "0"], ["demo", "--nonsense"]])
def test_a_wrong_command_line_is_refused(arguments):
    with pytest.raises(SystemExit) as refusal:
        cli.main(arguments)
    assert refusal.value.code == 2


# whole runs


class Demo:
    """A run of `ropeway demo` in its own process group."""

    def __init__(self, *arguments):
        command = [sys.executable, "-m", "ropeway.cli", "demo", *map(str, arguments)]
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
        listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [
            pid
            for pid in map(int, listed.split())
            if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]

    def at_work(self, number, seconds):
        """Waits until the numbered child has computed for so long; gives its pid."""
        end = time.monotonic() + WATCHDOG
        while time.monotonic() < end:
            children = self.children()
            if len(children) > number and cpu_seconds(children[number]) > seconds:
                return children[number]
            time.sleep(0.02)
        raise AssertionError(f"child {number} did nothing")


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


def test_a_killed_loader_is_replaced_and_no_batch_is_lost_or_doubled(demo, folder):
    run = demo(folder, "--batches", 120, "--batch-size", 8, "--timeline", folder / "out.png")
    victim = run.at_work(0, 0.8)
    os.kill(victim, signal.SIGKILL)
    status, out, err = run.finish()
    assert (status, err) == (0, "")
    assert f"(pid {victim}) was killed by SIGKILL" in out
    assert "hand-offs    120," in out


def test_a_killed_trainer_ends_the_run_with_a_sentence(demo, folder):
    run = demo(folder, "--seconds", 50, "--batch-size", 8, "--timeline", folder / "out.png")
    os.kill(run.at_work(2, 0.5), signal.SIGKILL)
    status, _, err = run.finish()
    assert (status, err) == (1, "ropeway: the trainer was killed by SIGKILL\n")


@pytest.mark.parametrize("seconds", [0.0, 0.1, 1.0])
def test_an_interrupt_ends_everything_with_one_line(demo, folder, seconds):
    run = demo(folder, "--seconds", 50, "--batch-size", 8, "--timeline", folder / "out.png")
    run.at_work(0, seconds)
    children = run.children()
    os.killpg(run.process.pid, signal.SIGINT)
    status, out, err = run.finish()
    assert (status, err) == (130, "")
    assert re.fullmatch(r"photos: .*\n(.* free .*\n)*stopped after .*\n", out)
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)


def test_classic_hands_over_what_was_filled_in(demo):
    status, out, err = demo("--classic", "--elements", 1_000_003, "--rounds", 5).finish()
    assert (status, err) == (0, "")
    total = sum(range(1_000_003)) * 5 + 1_000_003 * sum(range(5))
    assert f"checksum {total:,} over 5,000,015 elements, as expected" in out
    assert "the loader ended cleanly, the processor ended cleanly" in out


def test_classic_stops_cleanly(demo):
    run = demo("--classic", "--elements", 2_000_000, "--rounds", 1_000_000)
    run.at_work(1, 0.5)
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
