"""Where arrays lie: for the programs of trials, which find this module on their path."""

import importlib.util


def address(array):
    """The address of an array's first element, also of torch's and JAX's."""
    if hasattr(array, "data_ptr"):
        return array.data_ptr()
    if hasattr(array, "unsafe_buffer_pointer"):
        return array.unsafe_buffer_pointer()
    return array.__array_interface__["data"][0]


def place(array):
    """Device and inode of the memory that an array lies in; inode 0 is private memory."""
    for span, device, inode in mappings():
        if address(array) in span:
            return device, inode
    raise LookupError("the array lies in no mapping of this process")


def mappings():
    """The mappings of this process: addresses, device, inode."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, _, _, device, inode = line.split()[:5]
            begin, end = (int(text, 16) for text in span.split("-"))
            yield range(begin, end), device, int(inode)


def private_bytes():
    """Bytes of memory that this process shares with nobody and no file."""
    with open("/proc/self/smaps_rollup") as rollup:
        (line,) = (line for line in rollup if line.startswith("Anonymous:"))
    return int(line.split()[1]) * 1024


def by_dlpack(array):
    """What the frameworks that are installed make of an array: name and array."""
    import numpy

    yield "numpy", numpy.from_dlpack(array)
    if importlib.util.find_spec("torch"):
        import torch

        yield "torch", torch.from_dlpack(array)
    if importlib.util.find_spec("jax"):
        import jax

        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_enable_x64", True)
        yield "jax", jax.dlpack.from_dlpack(array, copy=False)
