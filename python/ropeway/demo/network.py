"""A small convolutional network in pure NumPy that finds how far a picture was turned."""

import numpy as np
import numpy.typing as npt

from .augment import SIDE
from .layers import Adam, Array, Convolution, Dense, Rectifier

SHRINK = 4  # the network sees means of 4 by 4 pixels
CHANNELS = (24, 48)  # after the first and the second convolution
HIDDEN = 128
RATE = 1.5e-3
FLATTEST = 0.05  # added to a picture's contrast, so that an even one isn't blown up


def shrunk(images: Array) -> Array:
    """Averages blocks of 4 by 4 pixels, reading the (N, C, H, W) images where they lie.

    Gives (N, H / 4, W / 4, C).
    """
    rows = images[:, :, 0::SHRINK] + images[:, :, 1::SHRINK]
    for i in range(2, SHRINK):
        rows += images[:, :, i::SHRINK]
    blocks = rows[..., 0::SHRINK] + rows[..., 1::SHRINK]
    for i in range(2, SHRINK):
        blocks += rows[..., i::SHRINK]
    blocks /= SHRINK * SHRINK
    return blocks.transpose(0, 2, 3, 1)


def normalised(pictures: Array) -> Array:
    """Gives each picture the mean 0 and about the deviation 1."""
    axes = (1, 2, 3)
    centred: Array = pictures - pictures.mean(axes, keepdims=True)
    centred /= centred.std(axes, keepdims=True) + pictures.dtype.type(FLATTEST)
    return centred


class Network:
    """Two convolutions and two dense layers; learns by `step`."""

    def __init__(self, seed: int = 0, side: int = SIDE, dtype: npt.DTypeLike = "float32"):
        random = np.random.default_rng(seed)
        first, second = CHANNELS
        left = ((side // SHRINK - 5) // 2 + 1 - 3) // 2 + 1  # rows after both convolutions
        self.layers = [
            Convolution(random, 3, first, 5, dtype),
            Rectifier(),
            Convolution(random, first, second, 3, dtype),
            Rectifier(),
            Dense(random, left * left * second, HIDDEN, dtype),
            Rectifier(),
            Dense(random, HIDDEN, 1, dtype),
        ]
        self.layers[-1].parameters[0] *= 0.1  # begins near "not turned"
        self.adam = Adam(RATE)

    def predict(self, images: Array) -> Array:
        """Gives one label for each of the (N, 3, H, W) images, which it only reads."""
        x = normalised(shrunk(images))
        for layer in self.layers:
            x = layer.forward(x)
        return x[:, 0]

    def backward(self, errors: Array) -> None:
        """Finds the gradients of the mean squared error for what `predict` saw last."""
        slope = (2 / len(errors) * errors)[:, None]
        for layer in reversed(self.layers):
            slope = layer.backward(slope)

    def step(self, images: Array, labels: Array) -> Array:
        """Learns from one batch; gives the predictions made before."""
        predictions = self.predict(images)
        self.backward(predictions - labels)
        self.adam.move(self.layers)
        return predictions
