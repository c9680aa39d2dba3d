"""The demo finds photos, decodes and turns them."""

import math
import sys

import numpy as np
import pytest
from PIL import Image

from ropeway.demo import DemoError, augment, photos


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
