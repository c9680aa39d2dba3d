"""R12: bool stays bool, one byte an element, without a copy (pytorch/pytorch#114673)."""

PROGRAM = """
    import ctypes, importlib.util, multiprocessing, sys
    import numpy as np
    import ropeway as rw
    from memory import address, by_dlpack, place

    VALUES = [[True, False, True], [False, False, True]]

    def check(array):
        assert array.dtype == bool and array.nbytes == 6 and array.tolist() == VALUES
        for name, imported in by_dlpack(array):
            assert str(imported.dtype).removeprefix("torch.") == "bool", name
            assert address(imported) == address(array), name
            assert imported.tolist() == VALUES, name

    def receive(array, there, back):
        check(array)
        back.put(place(array))
        check(there.get())

    def tensors():
        yield np.array(VALUES)
        if importlib.util.find_spec("torch"):
            yield __import__("torch").tensor(VALUES)
        if importlib.util.find_spec("jax"):
            yield __import__("jax").numpy.array(VALUES)

    def code_in_capsule(array):
        class Managed(ctypes.Structure):
            _fields_ = [
                ("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
            ]
        get = ctypes.pythonapi.PyCapsule_GetPointer
        get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        managed = Managed.from_address(get(array.__dlpack__(), b"dltensor"))
        return managed.code, managed.bits, managed.lanes

    if __name__ == "__main__":
        context = multiprocessing.get_context(sys.argv[1])
        array, there, back = rw.share(np.array(VALUES)), rw.Queue(), rw.Queue()
        child = context.Process(target=receive, args=(array, there, back))
        child.start()
        assert back.get() == place(array)
        there.put(np.array(VALUES))
        child.join()
        assert child.exitcode == 0
        check(array)

        pool = rw.Pool(slots=1, shape=(2, 3), dtype=bool)
        for tensor in tensors():
            shared = rw.share(tensor)
            check(shared)
            slot = pool.acquire()
            slot["array"][...] = tensor
            slot.publish()
            with pool.take(write=True) as slot:
                check(slot["array"])
        assert code_in_capsule(array) == (6, 8, 1)
"""


def test_bool_stays_bool(room, method):
    """R12; code 6 in the capsule is what a framework without bool refuses."""
    room.run(PROGRAM, method)
