"""R41: memory of other devices is refused by name, unread (NVIDIA/DALI#3182)."""

PROGRAM = """
    import importlib.util
    import numpy as np
    import ropeway as rw

    class Elsewhere:
        "An array on a GPU: reading its memory would end this process."

        def __dlpack_device__(self):
            return 2, 0

        def __dlpack__(self, **options):
            raise AssertionError("the capsule was asked for")

    def refused(work, *names):
        try:
            work()
        except (BufferError, TypeError, ValueError) as error:
            assert any(name in str(error) for name in names), error
        else:
            raise AssertionError("no error")

    pool = rw.Pool(slots=1, shape=(3,), dtype="f4")
    stubs = [(Elsewhere(), ("CUDA",))]
    if importlib.util.find_spec("torch"):
        import torch

        stubs.append((torch.zeros(3, device="meta"), ("meta", "device")))
    for array, names in stubs:
        refused(lambda: rw.share(array), *names)
        with pool.acquire(timeout=5) as slot:
            refused(lambda: slot.__setitem__("array", array), *names)
            refused(lambda: slot.fill("array", array), *names)
    with pool.acquire(timeout=5) as slot:
        assert slot.array.__dlpack_device__() == (1, 0)
    assert rw.zeros(3).__dlpack_device__() == (1, 0)
"""


def test_memory_of_a_device_is_refused_by_name(room):
    """R41, steps 1 and 3, without a GPU."""
    room.run(PROGRAM)
