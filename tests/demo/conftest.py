"""What tests of the demo share: a folder with photos."""

import numpy as np
import pytest
from PIL import Image


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
