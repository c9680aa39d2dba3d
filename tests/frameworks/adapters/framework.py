"""What a framework does with our memory, as far as most do the same."""

import numpy as np

import ropeway as rw

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
OF_ML_DTYPES = ("bfloat16", "float8_e4m3fn", "float8_e5m2")


class Framework:
    """Takes arrays at their address, and gives away its own.

    `dtypes` are taken without a copy, all others are refused (with `refusal`). `layouts` are those
    that are taken of "fortran", "gaps", "reversed"; `shapes` that aren't taken are in `odd_shapes`.
    `aligned` memory is all that is taken by some.
    A read-only array comes out "kept" (read-only), "constant" (the framework never writes) or
    "refused".
    """

    name = ""
    refusal = BufferError
    dtypes = ("bool", *INTEGERS, *FLOATS, *COMPLEX)
    layouts = ("fortran", "gaps")
    odd_shapes = ()
    aligned = False
    readonly = "refused"
    writes = True

    def take(self, array):
        """An array of the framework, at the same address."""
        return rw.asarray(array, like=self.name)

    def address(self, there):
        raise NotImplementedError

    def values(self, there):
        """A copy for NumPy, when what was queued is done."""
        return np.array(there)

    def write(self, there, value):
        """Sets all elements, in place."""
        there[...] = value

    def part(self, there):
        """A view of the last elements along the first axis."""
        return there[-2:]

    def last(self, there):
        """The last three values, None where that would take a copy of all."""
        return self.values(there[-3:])

    def make(self, values):
        """An array of the framework's own."""
        raise NotImplementedError

    def offer(self, own):
        """What of an array of its own ropeway can take."""
        return own

    def late(self, there):
        """Queues an operation that reads `there` late; a function that gives its result.

        None if the framework computes at once.
        """
        return None
