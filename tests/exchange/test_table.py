"""The table of C functions by which arrays are exchanged without Python."""

import ctypes

import pytest
from single import NEW, is_free, one, taken

import ropeway as rw
from capsules import READ_ONLY, Versioned, address, managed


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
