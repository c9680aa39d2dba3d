"""R19: tensors of a gradient graph are refused in the caller's line (pytorch/pytorch#36457).

And a conjugate that is only a flag (pytorch/pytorch#59945) never arrives with the wrong sign.
"""

import importlib.util

import pytest

PROGRAM = """
    import queue
    import warnings
    import numpy as np

    warnings.simplefilter("ignore")
    import torch
    import ropeway as rw

    t = torch.ones(4, requires_grad=True)
    u = t * 2
    c = torch.tensor([1 + 2j, 3 - 4j], dtype=torch.complex64).conj()
    d = c.imag

    def ways(dtype, n, pool):
        def fill(x):
            with pool.acquire(timeout=5) as slot:
                slot["array"] = x
                assert (slot.array == np.array(expected(x), dtype)).all(), slot.array

        yield fill
        yield lambda x: same(rw.share(x), dtype, x)

    def expected(x):
        return x.detach().resolve_conj().resolve_neg().tolist()

    def same(array, dtype, x):
        assert array.dtype == dtype and array.tolist() == expected(x), array

    def refused(work, *names):
        try:
            work()
        except (BufferError, RuntimeError, TypeError) as error:
            assert any(name in str(error) for name in names), error
            return True
        return False

    reals = rw.Pool(slots=1, shape=(4,), dtype="f4")
    for way in ways("f4", 4, reals):
        for x in (t, u):
            assert refused(lambda: way(x), "grad"), "a tensor of a graph was taken"
        way(u.detach())
        way(t.detach())
    complexes = rw.Pool(slots=1, shape=(2,), dtype="c8")
    for way in ways("c8", 2, complexes):
        refused(lambda: way(c), "conj")  # or the values that the user sees
        way(c.resolve_conj())
    imaginary = rw.Pool(slots=1, shape=(2,), dtype="f4")
    for way in ways("f4", 2, imaginary):
        refused(lambda: way(d), "neg", "conj")
        way(d.resolve_neg() if hasattr(d, "resolve_neg") else d.clone())
    for dtype in (torch.complex64, torch.complex128):
        plain = torch.tensor([1 + 2j, 3 - 4j], dtype=dtype)
        same(rw.share(plain), str(dtype).removeprefix("torch."), plain)
    for pool in (reals, complexes, imaginary):
        assert pool.status().slots[0].state == "idle"
"""

QUEUE = """
    import warnings

    warnings.simplefilter("ignore")
    import torch
    import ropeway as rw

    q = rw.Queue()
    c = torch.tensor([1 + 2j, 3 - 4j], dtype=torch.complex64).conj()
    for x, there in [(torch.ones(4) * 2, [2.0] * 4), (c, [1 - 2j, 3 + 4j]), (c.imag, [-2.0, 4.0])]:
        q.put(x)
        assert q.get(timeout=5).tolist() == there
    t = torch.ones(4, requires_grad=True)
    try:
        q.put(t * 2)
    except (BufferError, RuntimeError, TypeError) as error:
        assert "grad" in str(error), error
    else:
        raise AssertionError("a tensor of a graph was put on the queue")
    assert q.empty()
    q.put("works")
    assert q.get(timeout=5) == "works"
    q.close()
"""


@pytest.fixture(autouse=True)
def torch_is_there():
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch isn't installed")


def test_tensors_of_a_graph_are_refused_and_signs_are_right(room):
    """R19, for slots and shared arrays."""
    room.run(PROGRAM)


def test_a_queue_refuses_tensors_of_a_graph(room):
    """R19, for the queue."""
    room.run(QUEUE)
