"""The same network in JAX; its input array is the slot's own memory."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import DemoError
from .layers import Adam, Array
from .network import FLATTEST, RATE, SHRINK
from .network import Network as NumpyNetwork


def array_of(array: Array) -> jax.Array:
    """Makes a JAX array over an array's memory. Raises `DemoError` if JAX has copied it."""
    result = jax.device_put(array)  # takes read-only memory too, which its DLPack import refuses
    if result.unsafe_buffer_pointer() != array.ctypes.data:
        raise DemoError(
            f"JAX copied the images to {result.unsafe_buffer_pointer():#x}, "
            f"they lie at {array.ctypes.data:#x}"
        )
    return result


def predict(parameters: list[jax.Array], images: jax.Array) -> jax.Array:
    """Gives one label for each image."""
    count, channels, height, width = images.shape
    blocks = (count, channels, height // SHRINK, SHRINK, width // SHRINK, SHRINK)
    x = images.reshape(blocks).mean((3, 5))
    x -= x.mean((1, 2, 3), keepdims=True)
    x /= x.std((1, 2, 3), keepdims=True) + FLATTEST
    for kernels, bias in (parameters[0:2], parameters[2:4]):
        x = jax.nn.relu(jax.lax.conv(x, kernels, (2, 2), "VALID") + bias[:, None, None])
    x = jax.nn.relu(x.reshape(count, -1) @ parameters[4] + parameters[5])
    return (x @ parameters[6] + parameters[7])[:, 0]


def loss(
    parameters: list[jax.Array], images: jax.Array, labels: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Gives the mean squared error, and the predictions."""
    predictions = predict(parameters, images)
    return jnp.mean((predictions - labels) ** 2), predictions


@partial(jax.jit, donate_argnums=0)
def learn(state: Any, images: jax.Array, labels: jax.Array) -> tuple[Any, jax.Array]:
    """Moves the parameters by one step of Adam; gives the new state and the predictions."""
    steps, parameters, means, squares = state
    gradients, predictions = jax.grad(loss, has_aux=True)(parameters, images, labels)
    steps += 1
    means = jax.tree.map(lambda m, g: m + (1 - Adam.MEAN) * (g - m), means, gradients)
    squares = jax.tree.map(lambda s, g: s + (1 - Adam.SQUARE) * (g * g - s), squares, gradients)
    rate = RATE * jnp.sqrt(1 - Adam.SQUARE**steps) / (1 - Adam.MEAN**steps)
    rate *= jnp.minimum(1, steps / Adam.WARM_UP)
    parameters = jax.tree.map(
        lambda p, m, s: p - rate * m / (jnp.sqrt(s) + Adam.TINY), parameters, means, squares
    )
    return (steps, parameters, means, squares), predictions


class Network:
    """Two convolutions and two dense layers; learns by `step`."""

    def __init__(self, seed: int = 0):
        layers = NumpyNetwork(seed).layers
        parameters = [jnp.asarray(p) for layer in layers for p in layer.parameters]
        for i, (channels, side) in {0: (3, 5), 2: (parameters[0].shape[1], 3)}.items():
            # (C * side * side, F), as NumPy's network has them, to (F, C, side, side)
            parameters[i] = parameters[i].T.reshape(-1, channels, side, side)
        means, squares = ([jnp.zeros_like(p) for p in parameters] for _ in range(2))
        self.state = (jnp.zeros(()), parameters, means, squares)

    def step(self, images: Array, labels: Array) -> Array:
        """Learns from one batch; gives the predictions made before.

        JAX has read the batch when this returns.
        """
        learned = learn(self.state, array_of(images), labels.copy())
        self.state, predictions = jax.block_until_ready(learned)
        return np.asarray(predictions)
