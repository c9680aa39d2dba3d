"""Workers keep the memory that a sample has freed, as the next sample needs as much again.

Of its own, glibc gives freed memory back to the system if it is large or lies at the heap's end,
and each sample then waits for fresh pages: some hundred page faults for a photo of 0.2 megapixels.
"""

import contextlib
import ctypes
import os

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of `mallopt`
_KEPT = 64 << 20
"""Bytes of free memory that a worker keeps at the end of its heap."""
_LARGE = 32 << 20
"""Bytes of an allocation that has pages of its own, which go with it: the most that glibc takes."""


def keep() -> None:
    """Makes this process keep memory that it frees, unless its environment has a say in that."""
    if "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    with contextlib.suppress(AttributeError, OSError):  # the C library isn't glibc
        library = ctypes.CDLL(None)
        for name, option, nbytes in (
            ("MALLOC_TRIM_THRESHOLD_", _TRIM_THRESHOLD, _KEPT),
            ("MALLOC_MMAP_THRESHOLD_", _MMAP_THRESHOLD, _LARGE),
        ):
            if name not in os.environ:
                library.mallopt(option, nbytes)
