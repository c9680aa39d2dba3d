"""R19, exchange: complex values arrive as they were seen, or not at all (pytorch/pytorch#59945)."""

PROGRAM = """
    import numpy as np
    import ropeway as rw

    class Lazy:
        "Stands for a tensor that belongs to a gradient graph, or is conjugated by a flag alone."

        def __init__(self, why):
            self.why = why

        def __dlpack_device__(self):
            return 1, 0

        def __dlpack__(self, **options):
            raise BufferError(self.why)

    PLAIN = {name: np.array([1 + 2j, 3 - 4j], name) for name in ("complex64", "complex128")}
    q = rw.Queue()
    for name, plain in PLAIN.items():
        pool = rw.Pool(slots=1, shape=(2,), dtype=name)
        for values in (plain, plain.conj()):
            q.put([values, values.imag])
            whole, imaginary = q.get()
            assert (whole.dtype, whole.tolist()) == (name, values.tolist())
            assert imaginary.tolist() == values.imag.tolist()
            with pool.acquire() as slot:
                slot.array[...] = values
                slot.publish()
            with pool.take(private=True) as slot:
                assert np.from_dlpack(slot.array).tolist() == values.tolist()
                assert np.from_dlpack(slot.array.imag).tolist() == values.imag.tolist()
                assert rw.share(slot.array.imag).tolist() == values.imag.tolist()
        for why in ("requires grad", "conjugate bit"):
            def share():
                rw.share(Lazy(why))

            def fill():
                with pool.acquire(timeout=5) as slot:
                    slot["array"] = Lazy(why)

            for work in (share, fill):
                try:
                    work()
                except BufferError as error:
                    assert why in str(error) and "Lazy" in str(error), error
                else:
                    raise AssertionError("it was taken")
    q.put(PLAIN)
    assert q.get().keys() == PLAIN.keys()
"""


def test_complex_values_arrive_as_they_were_seen(room):
    """R19 without a framework: plain complex arrays, and what refuses its own export."""
    room.run(PROGRAM)
