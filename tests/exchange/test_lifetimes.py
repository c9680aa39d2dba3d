"""A slot waits for the last of its exports, on whatever thread it goes."""

import contextlib
import ctypes
import gc
import os
import threading

import numpy as np
import pytest
from single import KNOWS_VERSIONS, NEW, is_free, one, taken

import ropeway as rw
from capsules import managed


def test_a_slot_waits_for_the_capsule():
    pool = one()
    slot = taken(pool)
    capsule = slot.array.__dlpack__(**NEW)
    with pytest.raises(rw.InUse, match="1 DLPack capsule"):
        slot.release()
    with slot:
        pass
    assert not is_free(pool)
    del capsule
    assert is_free(pool)


def test_a_slot_waits_for_the_tensor_and_its_views():
    pool = one()
    slot = taken(pool, private=True)
    tensor = np.from_dlpack(slot.array)
    part = tensor[1:2]
    with slot:
        del tensor
    gc.collect()
    assert not is_free(pool)
    assert (part == 1).all()
    again = part.__dlpack__(**NEW) if KNOWS_VERSIONS else part[:1]
    del part
    assert not is_free(pool)
    del again
    assert is_free(pool)


def test_an_export_of_an_ended_lease_can_be_exported_again():
    pool = one()
    slot = taken(pool)
    with slot:
        array = slot.array
    capsule = array.__dlpack__(**NEW)
    del array
    assert not is_free(pool)
    del capsule
    assert is_free(pool)


def test_kinds_and_numbers_are_named_and_listed():
    pool = one()
    slot = taken(pool)
    array = slot.array
    capsules = [array.__dlpack__(**NEW) for _ in range(3)]
    arrow = array.__arrow_c_array__()
    with pytest.raises(rw.InUse, match="1 array, 3 DLPack capsules, 1 Arrow array"):
        slot.release()
    exports = {export.kind: export for export in pool.status().slots[0].exports}
    numbers = {kind: export.count for kind, export in exports.items()}
    assert numbers == {"array": 1, "DLPack capsule": 3, "Arrow array": 1}
    assert all(0 <= export.age_s < 100 for export in exports.values())
    del array, capsules, arrow
    assert pool.status().slots[0].exports == ()
    slot.release()


@pytest.mark.parametrize("fixed", [True, False])
def test_the_arrays_that_are_left_are_named(fixed):
    known = [f"part{k}" for k in range(10)]
    pool = rw.Pool(1, fields=dict.fromkeys(known, ((16,), "f4")) if fixed else None)
    for names in (known, known if fixed else known[::-1]):  # the next round may have others
        slot = pool.acquire(timeout=10)
        if not fixed:
            for name in names:
                slot.add(name, (16,), "f4")
        first, capsule = slot[names[0]], slot[names[0]].__dlpack__(**NEW)
        third, pointer = slot[names[2]][::2], slot.pointer(names[2])
        with pytest.raises(
            rw.InUse,
            match=rf"{names[0]}: 1 array, 1 DLPack capsule; {names[2]}: 1 array, 1 raw pointer;",
        ):
            slot.publish()
        exports = [(e.array, e.kind) for e in pool.status().slots[0].exports]
        assert exports == [
            *((names[0], kind) for kind in ("array", "DLPack capsule")),
            *((names[2], kind) for kind in ("array", "raw pointer")),
        ]
        del first, capsule, third, pointer
        last = [slot[name] for name in names[7:]]
        assert sum(e.count for e in pool.status().slots[0].exports) == 3
        del last
        slot.release()


def test_deleters_run_in_any_thread_without_the_interpreter():
    pool = one()
    slot = taken(pool)
    content = managed(capsule := slot.array.__dlpack__(**NEW))
    ctypes.pythonapi.PyCapsule_SetName(ctypes.py_object(capsule), b"used_dltensor_versioned")
    deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(content.deleter)  # lets go of the interpreter
    thread = threading.Thread(target=deleter, args=(ctypes.addressof(content),))
    with slot:
        pass
    assert not is_free(pool)
    thread.start()
    thread.join()
    assert is_free(pool)


def test_threads_may_export_and_drop_at_once(eventually):
    pool = one()
    slot = taken(pool, private=True)
    array, failures = slot.array, []

    def work(array):
        for _ in range(500):
            tensor = np.from_dlpack(array)
            if tensor[0, 0] != 1:
                failures.append(tensor[0, 0])
            array.__dlpack__(**NEW)

    threads = [threading.Thread(target=work, args=[array]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    with slot:
        del array, thread, threads
    assert eventually(lambda: is_free(pool))


def test_a_deleter_may_run_after_the_interpreter(fresh):
    fresh("""
        import ctypes
        import ropeway as rw

        libc = ctypes.CDLL(None)
        name = ctypes.c_char_p(b"used_dltensor_versioned")
        get = ctypes.pythonapi.PyCapsule_GetPointer
        get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        pool = rw.Pool(1, shape=(100,), dtype="f4")
        slot = pool.acquire()
        for array in (slot.array, rw.zeros(100)):
            capsule = array.__dlpack__(max_version=(1, 0))
            content = get(capsule, b"dltensor_versioned")
            ctypes.pythonapi.PyCapsule_SetName(ctypes.py_object(capsule), name)
            deleter = ctypes.c_void_p.from_address(content + 16)
            # Runs when the process ends, long after the interpreter is gone.
            assert libc.__cxa_atexit(deleter, ctypes.c_void_p(content), None) == 0
        del array, capsule, slot, pool
    """)


def test_a_forked_child_lets_go_of_nothing_of_its_parents():
    pool = one()
    slot = taken(pool)
    array = slot.array
    capsule = array.__dlpack__(**NEW)
    child = os.fork()
    if child == 0:
        code = 1
        with contextlib.suppress(BaseException):
            del capsule, array
            slot.__exit__()
            code = 0
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert pool.status().slots[0].state == "held-read"
    with pytest.raises(rw.InUse, match="1 array, 1 DLPack capsule"):
        slot.release()
    del capsule, array
    slot.release()


def test_what_has_no_elements_keeps_no_slot():
    """PyTorch 1.13 never lets go of it."""
    pool = rw.Pool(1, shape=(0, 3), dtype="f4")
    slot = pool.acquire()
    capsules = [slot.array.__dlpack__(), slot.array.__dlpack__(max_version=(1, 3))]
    assert pool.status().slots[0].exports == ()
    slot.release()
    del capsules
