"""The layers of a small network in pure NumPy, with their gradients.

Pictures are (N, H, W, C). `forward` keeps what `backward` needs; `backward` takes the gradient of
the loss by the layer's output, stores those by its parameters and gives the one by its input.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

Array = npt.NDArray[np.floating[Any]]


class Layer:
    """A step of a network, with what it learns."""

    def __init__(self, *parameters: Array):
        self.parameters = list(parameters)
        self.gradients = [np.zeros_like(parameter) for parameter in parameters]

    def forward(self, x: Array) -> Array:
        """Gives the layer's output."""
        raise NotImplementedError

    def backward(self, slope: Array) -> Array:
        """Passes the gradient on from the output to the input."""
        raise NotImplementedError


def weights(random: np.random.Generator, inputs: int, outputs: int, dtype: npt.DTypeLike) -> Array:
    """Draws weights that keep the variance through a rectifier (He et al. 2015)."""
    return random.normal(0, np.sqrt(2 / inputs), (inputs, outputs)).astype(dtype)


class Dense(Layer):
    """Every output sees every input."""

    def __init__(
        self, random: np.random.Generator, inputs: int, outputs: int, dtype: npt.DTypeLike
    ):
        super().__init__(weights(random, inputs, outputs, dtype), np.zeros(outputs, dtype))

    def forward(self, x: Array) -> Array:
        """Gives (N, outputs)."""
        self.shape = x.shape
        self.rows = x.reshape(len(x), -1)
        return self.rows @ self.parameters[0] + self.parameters[1]

    def backward(self, slope: Array) -> Array:
        """Passes the gradient on from the output to the input."""
        self.gradients = [self.rows.T @ slope, slope.sum(0)]
        return (slope @ self.parameters[0].T).reshape(self.shape)


class Convolution(Layer):
    """A square kernel that moves over the picture in steps of two pixels.

    All its windows together are one matrix, so there is one matrix product (Chellapilla et al.
    2006).
    """

    STEP = 2

    def __init__(
        self,
        random: np.random.Generator,
        inputs: int,
        outputs: int,
        side: int,
        dtype: npt.DTypeLike,
    ):
        kernels = weights(random, inputs * side * side, outputs, dtype)
        super().__init__(kernels, np.zeros(outputs, dtype))
        self.side = side

    def forward(self, x: Array) -> Array:
        """Gives (N, rows, columns, outputs), a row for each place of the kernel."""
        step = self.STEP
        windows = sliding_window_view(x, (self.side, self.side), axis=(1, 2))[:, ::step, ::step]
        self.shape, self.grid = x.shape, windows.shape[:3]
        self.rows = windows.reshape(np.prod(self.grid), -1)  # a copy: windows overlap
        return (self.rows @ self.parameters[0] + self.parameters[1]).reshape(*self.grid, -1)

    def backward(self, slope: Array) -> Array:
        """Passes the gradient on from the output to the input."""
        slope = slope.reshape(len(self.rows), -1)
        self.gradients = [self.rows.T @ slope, slope.sum(0)]
        windows = (slope @ self.parameters[0].T).reshape(*self.grid, -1, self.side, self.side)
        result = np.zeros(self.shape, slope.dtype)
        _, height, width = (self.STEP * n for n in self.grid)
        for i in range(self.side):
            for j in range(self.side):
                part = result[:, i : i + height : self.STEP, j : j + width : self.STEP]
                part += windows[..., i, j]
        return result


class Rectifier(Layer):
    """Lets the positive pass."""

    def forward(self, x: Array) -> Array:
        """Gives what is positive, and 0 elsewhere."""
        self.passed = x > 0
        return x * self.passed

    def backward(self, slope: Array) -> Array:
        """Passes the gradient on from the output to the input."""
        return slope * self.passed


class Adam:
    """Moves parameters down their gradients (Kingma and Ba 2014), slower during the first steps."""

    MEAN, SQUARE, TINY = 0.9, 0.999, 1e-8
    WARM_UP = 20

    def __init__(self, rate: float):
        self.rate = rate
        self.steps = 0

    def move(self, layers: list[Layer]) -> None:
        """Makes one step."""
        parameters = [parameter for layer in layers for parameter in layer.parameters]
        gradients = [gradient for layer in layers for gradient in layer.gradients]
        if not self.steps:
            self.means = [np.zeros_like(parameter) for parameter in parameters]
            self.squares = [np.zeros_like(parameter) for parameter in parameters]
        self.steps += 1
        unbiased = np.sqrt(1 - self.SQUARE**self.steps) / (1 - self.MEAN**self.steps)
        rate = self.rate * unbiased * min(1, self.steps / self.WARM_UP)
        for parameter, gradient, mean, square in zip(
            parameters, gradients, self.means, self.squares, strict=True
        ):
            mean += (1 - self.MEAN) * (gradient - mean)
            square += (1 - self.SQUARE) * (gradient * gradient - square)
            parameter -= rate * mean / (np.sqrt(square) + self.TINY)
