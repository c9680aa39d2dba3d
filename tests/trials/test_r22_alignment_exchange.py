"""R22, exchange: memory of slots can always be taken as it is (jax-ml/jax#29810)."""

PROGRAM = """
    import multiprocessing, sys
    import ropeway as rw
    from memory import address, by_dlpack

    SIZES = [100, 1, 1_000_003, 7, 3, 13]
    DTYPES = ["uint8", "float32", "complex128"]
    FIELDS = {f"{dtype}_{n}": ((n,), dtype) for n in SIZES for dtype in DTYPES}

    def check(slot):
        for name in FIELDS:
            array = slot[name]
            assert address(array) % 64 == 0, name
            for framework, imported in by_dlpack(array):
                assert address(imported) == address(array), (framework, name)

    def take(pool):
        with pool.take(timeout=20, private=True) as slot:
            check(slot)

    if __name__ == "__main__":
        context = multiprocessing.get_context(sys.argv[1])
        pool = rw.Pool(slots=2, fields=FIELDS)
        children = [context.Process(target=take, args=(pool,)) for _ in range(2)]
        for child in children:
            child.start()
        for _ in children:
            with pool.acquire(timeout=20) as slot:
                check(slot)
                slot.publish()
        for child in children:
            child.join()
            assert child.exitcode == 0
"""


def test_every_array_of_a_slot_is_taken_as_it_is(room):
    """R22, for the fields of slots, in the maker and two other processes."""
    room.run(PROGRAM, "spawn")
