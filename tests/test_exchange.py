"""Arrays of ropeway and those of other frameworks look at the same bytes, and the slot waits."""

import contextlib
import copy
import ctypes
import gc
import os
import pickle
import subprocess
import sys
import threading

import ml_dtypes
import numpy as np
import pytest

import ropeway as rw
from capsules import IS_COPIED, READ_ONLY, Producer, Seen, Versioned, address, managed, used

CODES = {
    "bool": (6, 8),
    "int8": (0, 8),
    "int16": (0, 16),
    "int32": (0, 32),
    "int64": (0, 64),
    "uint8": (1, 8),
    "uint16": (1, 16),
    "uint32": (1, 32),
    "uint64": (1, 64),
    "float16": (2, 16),
    "float32": (2, 32),
    "float64": (2, 64),
    "complex64": (5, 64),
    "complex128": (5, 128),
    ml_dtypes.bfloat16: (4, 16),
    ml_dtypes.float8_e3m4: (7, 8),
    ml_dtypes.float8_e4m3: (8, 8),
    ml_dtypes.float8_e4m3b11fnuz: (9, 8),
    ml_dtypes.float8_e4m3fn: (10, 8),
    ml_dtypes.float8_e4m3fnuz: (11, 8),
    ml_dtypes.float8_e5m2: (12, 8),
    ml_dtypes.float8_e5m2fnuz: (13, 8),
    ml_dtypes.float8_e8m0fnu: (14, 8),
}
NEW = {"max_version": (1, 3)}

KNOWS_VERSIONS = np.lib.NumpyVersion(np.__version__) >= "2.1.0"
"""Whether NumPy asks for the form that can say read-only."""


def one():
    """A pool of one slot."""
    return rw.Pool(1, shape=(4, 6), dtype="f4")


def publish(pool, value=1):
    with pool.acquire(timeout=10) as slot:
        slot.array[...] = value
        slot.publish()


def taken(pool, value=1, **how):
    """A slot that was published and taken."""
    publish(pool, value)
    return pool.take(timeout=10, **how)


def is_free(pool):
    return pool.status().slots[0].state == "idle"


# What an export says.


@pytest.mark.parametrize("dtype", CODES, ids=str)
def test_dtypes_go_as_themselves(dtype):
    pool = rw.Pool(1, shape=(3, 5), dtype=dtype)
    with pool.acquire() as slot:
        for array in (slot.array, rw.zeros((3, 5), dtype)):
            for options in (NEW, {}):
                seen = Seen(array.__dlpack__(**options))
                assert seen.dtype == (*CODES[dtype], 1)
                assert (seen.data, seen.byte_offset) == (address(array), 0)
                assert (seen.shape, seen.strides) == ((3, 5), (5, 1))
                assert seen.device == array.__dlpack_device__() == (1, 0)
        del array


@pytest.mark.parametrize(
    ("dtype", "instead"),
    [
        (">f4", "byte order"),
        (">i2", "newbyteorder"),
        ("M8[ns]", "int64"),
        ("m8[D]", "int64"),
        ([("a", "f4"), ("b", "i2")], "fields"),
        ("S5", "uint8"),
        ("U3", "uint8"),
        ("V4", "uint8"),
        ("longdouble", "float64"),
        (ml_dtypes.int4, "uint8"),
    ],
    ids=str,
)
def test_what_dlpack_cannot_say_is_refused_with_what_works_instead(dtype, instead):
    pool = rw.Pool(1, shape=(3,), dtype=dtype)
    with pool.acquire() as slot:
        for array in (slot.array, rw.zeros(3, dtype)):
            for options in ({}, NEW):
                with pytest.raises(BufferError, match=instead):
                    array.__dlpack__(**options)
        del array
    assert is_free(pool), "a refusal leaves nothing behind"


def test_the_form_is_chosen_by_max_version():
    pool = one()
    with pool.acquire() as slot:
        array = slot.array
        for options in ({}, {"max_version": None}, {"max_version": (0, 8)}):
            assert Seen(array.__dlpack__(**options)).name == "dltensor"
        for version in ((1, 0), (1, 3), (2, 0)):
            seen = Seen(array.__dlpack__(max_version=version))
            assert (seen.name, seen.version, seen.flags) == ("dltensor_versioned", (1, 3), 0)
        del array


def test_read_only_is_said_or_the_export_refused():
    pool = one()
    slot = taken(pool)
    array = slot.array
    assert Seen(array.__dlpack__(**NEW)).flags == READ_ONLY
    with pytest.raises(BufferError, match=r"private=True.*write=True"):
        array.__dlpack__()
    if KNOWS_VERSIONS:
        assert not np.from_dlpack(array).flags.writeable
    shared = rw.zeros(3)
    shared.flags.writeable = False
    with pytest.raises(BufferError, match="copy"):
        shared.__dlpack__()
    del array
    slot.release()
    with taken(pool, private=True) as slot:
        assert Seen(slot.array.__dlpack__()).name == "dltensor"


def test_a_copy_is_fresh_and_says_so():
    pool = one()
    slot = taken(pool, 7)
    for view in (slot.array, slot.array[::2, 1:], slot.array.T, slot.array[:, ::-1]):
        capsule = view.__dlpack__(**NEW, copy=True)
        seen = Seen(capsule)
        assert seen.flags == IS_COPIED
        assert seen.data != address(view)
        assert seen.data % 64 == 0
        assert np.array_equal(rw.share(Handed(capsule)), view)
    old = slot.array.__dlpack__(copy=True)
    assert Seen(old).name == "dltensor", "a copy may be written, so the old form can say it"
    del view
    slot.release()


class Handed:
    """Hands on one capsule."""

    def __init__(self, capsule):
        self.capsule = capsule

    def __dlpack__(self, **options):
        return self.capsule

    def __dlpack_device__(self):
        return 1, 0


def test_other_devices_and_streams_are_refused():
    pool = one()
    with pool.acquire() as slot:
        with pytest.raises(BufferError, match="CPU"):
            slot.array.__dlpack__(**NEW, dl_device=(2, 0))
        with pytest.raises(BufferError, match="stream"):
            slot.array.__dlpack__(**NEW, stream=1)
        slot.array.__dlpack__(**NEW, dl_device=(1, 0), copy=False)


def test_shapes_are_said_as_the_standard_wants():
    for make in (rw.zeros, lambda *spec: rw.Pool(1, *spec).acquire().array):
        none = Seen(make((), "f4").__dlpack__(**NEW))
        assert (none.ndim, none.shape, none.strides) == (0, None, None)
        assert none.data
        empty = Seen(make((0, 3), "f4").__dlpack__(**NEW))
        assert (empty.shape, empty.strides, empty.data) == ((0, 3), (3, 1), None)
        flat = make((2, 1, 3), "f4")
        odd = np.lib.stride_tricks.as_strided(flat, strides=(12, 4000, 4), subok=True)
        assert Seen(odd.__dlpack__(**NEW)).strides == (3, 3, 1)
        del flat, odd


def test_strided_views_keep_their_strides():
    pool = one()
    with pool.acquire() as slot:
        slot.array[...] = np.arange(24).reshape(4, 6)
        views = [slot.array[::2], slot.array.T, slot.array[1:, 2:4]]
        for view in views + [slot.array[:, ::-1]] * KNOWS_VERSIONS:
            imported = np.from_dlpack(view)
            assert np.array_equal(imported, view)
            assert address(imported) == address(view)
        with pytest.raises(BufferError, match="negative"):
            slot.array[::-1].__dlpack__()
        del views, view, imported


def test_memory_is_aligned():
    sizes = [1, 3, 7, 13, 100]
    pool = rw.Pool(2, fields={str(n): ((n,), "u1") for n in sizes})
    with pool.acquire(), pool.acquire() as slot:
        assert all(Seen(slot[str(n)].__dlpack__(**NEW)).data % 64 == 0 for n in sizes)


# How long an export lives.


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


# Who may write.


def test_private_pages_reach_nobody_and_are_fresh_in_the_next_round():
    # The labels of slots share a page.
    pool = rw.Pool(2, fields={"image": ((64, 30), "f4"), "label": ((16,), "i4")})
    for value in (1, 2, 3):
        with pool.acquire() as slot:
            slot["image"] = value
            slot["label"] = value
            slot.publish()
        with pool.take(private=True) as slot:
            for name in ("image", "label"):
                assert (slot[name] == value).all()
                slot[name][...] = 77
                assert (slot[name] == 77).all(), "an array is the same each time"
        with pool.acquire() as slot:
            assert not any((slot[name] == 77).any() for name in ("image", "label"))


def test_private_arrays_are_delivered_again_as_they_were_published():
    pool = one()
    publish(pool, 5)
    child = os.fork()
    if child == 0:
        slot = pool.take(timeout=10, private=True)
        slot.array[...] = 77
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    with pool.take(timeout=10) as slot:
        assert (slot.array == 5).all()
        assert slot.deliveries == 1


def test_a_write_to_read_only_pages_faults_whatever_the_flag_says():
    program = """
import ctypes, resource
import ropeway as rw
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
pool = rw.Pool(1, shape=(100,), dtype="f4")
with pool.acquire() as slot:
    slot.array[:] = 1
    slot.publish()
slot = pool.take(readonly="map")
array = slot.array
print(array.sum(), array.flags.writeable, flush=True)
ctypes.memset(array.ctypes.data, 0, 1)
print("written", flush=True)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (-11, b"100.0 False\n"), done.stderr.decode()


def test_arguments_of_take_that_cannot_be_are_refused():
    pool = one()
    publish(pool)
    for how in (
        {"readonly": "flag"},
        {"readonly": "map", "private": True},
        {"write": True, "private": True},
    ):
        with pytest.raises(ValueError, match=r"readonly|private"):
            pool.take(timeout=0, **how)
    pool.take(timeout=0).release()


# What comes in.


@pytest.mark.parametrize("versioned", [True, False])
@pytest.mark.parametrize("old", [True, False])
def test_foreign_arrays_are_copied_once(versioned, old):
    pool = one()
    values = np.arange(24, dtype="f4").reshape(4, 6)
    producer = Producer(values, versioned=versioned, old=old)
    shared = rw.share(producer)
    assert np.array_equal(shared, values)
    assert address(shared) != address(values)
    del shared
    with pool.acquire() as slot:
        slot["array"] = producer
        assert np.array_equal(slot.array, values)
        slot.fill("array", producer)
    gc.collect()
    assert producer.deleted == 3, "each deleter runs once"


@pytest.mark.parametrize(
    "array",
    [
        np.arange(24.0)[::-1],
        np.arange(24.0).reshape(4, 6).T,
        np.arange(24.0).reshape(4, 6)[::2, ::-3],
        np.float32(3.5),
        np.zeros((5, 0)),
        np.arange(3) > 1,
    ],
)
def test_any_layout_is_read(array):
    array = np.asarray(array)
    shared = rw.share(Producer(array))
    assert shared.shape == array.shape
    assert shared.dtype == array.dtype
    assert shared.tolist() == array.tolist()


def test_byte_offsets_and_missing_strides_are_read():
    values = np.arange(24.0)
    there = {"data": address(values) - 64, "byte_offset": 64, "strides": None}
    assert rw.share(Producer(values, **there)).tolist() == values.tolist()


def test_bfloat16_comes_in_as_itself():
    values = np.arange(5).astype(ml_dtypes.bfloat16)
    shared = rw.share(Producer(values, dtype=(4, 16, 1)))
    assert shared.dtype == ml_dtypes.bfloat16
    assert shared.tolist() == values.tolist()


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"version": (2, 0)}, r"DLPack 2\.0"),
        ({"dtype": (2, 64, 4)}, "vectors of 4"),
        ({"dtype": (17, 4, 1)}, "code 17"),
        ({"dtype": (99, 64, 1)}, "code 99"),
        ({"shape": (-1,)}, "negative"),
        ({"shape": (2**62,)}, "more than there can be"),
        ({"shape": (2**31, 2**31, 2**31), "strides": None}, "more than there can be"),
        ({"shape": (3,), "strides": (2**61,)}, "strides"),
        ({"ndim": 65}, "65 axes"),
        ({"ndim": -1}, "-1 axes"),
        ({"data": None}, "no memory"),
        ({"byte_offset": 2**64 - 8}, "address space"),
        ({"data": 8, "shape": (3,), "strides": (-1,)}, "address space"),
    ],
    ids=str,
)
def test_foreign_nonsense_is_refused_and_let_go_of(fields, why):
    pool = one()
    producer = Producer(np.arange(3.0), **fields)
    with pytest.raises(BufferError, match=why):
        rw.share(producer)
    with pool.acquire() as slot, pytest.raises(BufferError, match=why):
        slot["array"] = producer
    assert producer.deleted == 2
    assert is_free(pool)


@pytest.mark.parametrize(
    ("device", "name"), [((2, 0), "CUDA"), ((10, 3), "ROCm"), ((8, 0), "Metal")]
)
def test_a_device_is_looked_at_before_anything_is_asked_for(device, name):
    pool = one()
    producer = Producer(np.arange(3.0), device=device, data=0x10)
    with pytest.raises(BufferError, match=name):
        rw.share(producer)
    with pool.acquire() as slot, pytest.raises(BufferError, match=name):
        slot["array"] = producer
    assert producer.asked == 0


def test_memory_pinned_for_a_device_is_the_cpus():
    assert rw.share(Producer(np.arange(3.0), device=(3, 0))).tolist() == [0, 1, 2]


def test_a_capsule_is_taken_once():
    one()
    producer = Producer(np.arange(3.0))
    handed = Handed(producer.__dlpack__())
    assert rw.share(handed).tolist() == [0, 1, 2]
    assert used(handed.capsule)
    with pytest.raises(TypeError, match="once"):
        rw.share(handed)


def test_slots_take_whatever_has_a_buffer():
    pool = one()
    values = np.arange(24, dtype="f4").reshape(4, 6)
    for source in (
        memoryview(values),
        values.tolist(),
        values,
        Interface(values),
        Producer(values),
    ):
        with pool.acquire() as slot:
            slot["array"] = 0
            slot["array"] = source
            assert np.array_equal(slot.array, values)


class Interface:
    """Has nothing but `__array_interface__`."""

    def __init__(self, array):
        self.array, self.__array_interface__ = array, array.__array_interface__


def test_what_raises_in_an_export_raises_here():
    pool = one()

    class Lazy:
        def __dlpack_device__(self):
            return 1, 0

        def __dlpack__(self, **options):
            raise BufferError("needs grad")

    with pytest.raises(BufferError, match=r"Lazy.*needs grad"):
        rw.share(Lazy())
    with pool.acquire() as slot, pytest.raises(BufferError, match=r"Lazy.*needs grad"):
        slot["array"] = Lazy()


# What such an array is besides.


def test_results_and_copies_are_ordinary_arrays():
    pool = one()
    with pool.acquire() as slot:
        array = slot.array
        array[...] = 2
        for result in (
            array + 1,
            1 - array,
            array.copy(),
            array.astype("f8"),
            copy.copy(array),
            copy.deepcopy(array),
            np.abs(array),
        ):
            assert type(result) is np.ndarray
            assert not np.shares_memory(result, array)
        assert type(array.sum()) is np.float32
        kept = array
        kept += 1
        assert kept is array
        assert (array == 3).all()
        del array, kept


def test_linear_algebra_gives_ordinary_arrays(fresh):
    fresh("""
        import numpy as np
        import ropeway as rw

        with rw.Pool(1, shape=(4, 4), dtype="f4").acquire() as slot:
            slot.array[...] = np.eye(4) * 2
            for result in (slot.array @ slot.array, np.linalg.inv(slot.array)):
                assert not np.shares_memory(result, slot.array)
                # The linear algebra of NumPy 1 knows of no way to say so.
                assert type(result) is np.ndarray or np.__version__ < "2"
            assert (np.linalg.inv(slot.array) == np.eye(4) / 2).all()
    """)


def test_it_pickles_by_value():
    pool = one()
    with pool.acquire() as slot:
        slot.array[...] = 3
        copied = pickle.loads(pickle.dumps(slot.array, 5))
        assert type(copied) is np.ndarray
        assert (copied == 3).all()
        q = rw.Queue()
        q.put(slot.array)
        assert (q.get() == 3).all()
        q.close()


def test_frameworks_are_asked_for_by_name():
    with pytest.raises(ValueError, match="torch, jax"):
        rw.asarray(rw.zeros(3), like="numpy")


# The table of C functions.


class Table(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint32 * 2),
        ("previous", ctypes.c_void_p),
        *((name, ctypes.c_void_p) for name in ("allocate", "export", "make", "borrow", "stream")),
    )


def table(kind):
    get = ctypes.PyDLL(None).PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return Table.from_address(get(kind.__dlpack_c_exchange_api__, b"dlpack_exchange_api"))


def test_arrays_are_exchanged_by_c():
    functions = table(rw.Array)
    assert tuple(functions.version) == (1, 3)
    assert functions.previous is None
    assert functions.borrow is None
    pool = one()
    slot = taken(pool, 5)
    export = ctypes.PYFUNCTYPE(
        ctypes.c_int, ctypes.py_object, ctypes.POINTER(ctypes.POINTER(Versioned))
    )(functions.export)
    content = ctypes.POINTER(Versioned)()
    assert export(slot.array, ctypes.byref(content)) == 0
    assert content.contents.tensor.data == address(slot.array)
    assert content.contents.flags == READ_ONLY
    with pytest.raises(rw.InUse, match="1 DLPack capsule"):
        slot.release()
    make = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.py_object))(
        functions.make
    )
    made = ctypes.py_object()
    assert make(ctypes.cast(content, ctypes.c_void_p), ctypes.byref(made)) == 0
    array = made.value
    assert address(array) == address(slot.array)
    assert (array == 5).all()
    with slot:
        pass
    assert not is_free(pool)
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(array))  # `make` gave us a reference
    del array, made
    assert is_free(pool)
    with pytest.raises(BufferError, match="byte order"):
        export(rw.zeros(3, ">f4"), ctypes.byref(content))


def test_memory_is_allocated_by_c():
    functions = table(rw.Array)
    allocate = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)(functions.allocate)
    content = ctypes.POINTER(Versioned)()
    prototype = managed(capsule := rw.zeros((3, 4), "f8").__dlpack__(**NEW)).tensor
    assert allocate(ctypes.addressof(prototype), ctypes.addressof(content), None, None) == 0
    tensor = content.contents.tensor
    assert tensor.data % 64 == 0
    assert tensor.data != prototype.data
    assert (tuple(tensor.shape[:2]), tuple(tensor.strides[:2])) == ((3, 4), (4, 1))
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(content.contents.deleter)(ctypes.addressof(tensor) - 32)
    prototype.device[:] = (2, 0)
    assert allocate(ctypes.addressof(prototype), ctypes.addressof(content), None, None) == -1
    del capsule
