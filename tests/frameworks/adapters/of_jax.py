"""JAX: arrays that it takes for constant, and an engine that computes later."""

import jax
import jax.numpy as jnp
import numpy as np

from adapters import framework

jax.config.update("jax_platforms", "cpu")
SIZE = 900


class Framework(framework.Framework):
    name = "jax"
    dtypes = (
        *("bool", "int8", "int16", "int32", "uint8", "uint16", "uint32"),
        *("float16", "float32", "complex64", *framework.OF_ML_DTYPES),
    )  # those of 64 bits would be narrowed
    layouts = ("fortran",)
    readonly = "constant"
    aligned = True
    writes = False

    def __init__(self):
        self._busy = jax.jit(self._long)
        self._reads = jax.jit(lambda v, b: v + b * 0)
        self._ones = jnp.ones((SIZE, SIZE))
        self._reads(self._ones, self._busy(self._ones)).block_until_ready()

    @staticmethod
    def _long(v):
        for _ in range(20):
            v = jnp.dot(v, v) * 1e-3
        return v

    def address(self, there):
        return there.unsafe_buffer_pointer()

    def values(self, there):
        return np.array(there)

    def part(self, there):
        return there  # slices are copies

    def last(self, there):
        return None

    def make(self, values):
        return jnp.array(values)

    def late(self, there):
        result = self._reads(there, self._busy(self._ones))
        return result.is_ready, lambda: float(result[-1, -1])
