"""The table of C functions by which arrays are exchanged without Python."""

import ctypes
from ctypes import c_void_p

import pytest
from single import NEW, is_free, one, taken

import ropeway as rw
from capsules import READ_ONLY, Tensor, Versioned, address, managed


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


def test_what_is_made_by_c_may_only_be_read():
    """It may come from a slot that is read, by hands that have dropped the flag."""
    make = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.py_object))(
        table(rw.Array).make
    )
    for how in ({}, {"private": True}):
        pool = one()
        slot = taken(pool, **how)
        content = ctypes.addressof(managed(capsule := slot.array.__dlpack__(**NEW)))
        ctypes.pythonapi.PyCapsule_SetName(ctypes.py_object(capsule), b"used_dltensor_versioned")
        made = ctypes.py_object()
        assert make(content, ctypes.byref(made)) == 0
        assert not made.value.flags.writeable
        ctypes.pythonapi.Py_DecRef(made)
        del made
        slot.release()
    with pytest.raises(BufferError, match="null"):
        make(None, ctypes.byref(ctypes.py_object()))


@pytest.fixture
def allocate():
    """Asks for memory like a prototype; a tensor, or kind and text of the error."""
    function = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)(table(rw.Array).allocate)
    said = []
    note = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)(
        lambda _, kind, text: said.append((kind.decode(), text.decode()))
    )

    def ask(shape, **fields):
        prototype, content = Tensor(), ctypes.POINTER(Versioned)()
        prototype.device[:] = fields.pop("device", (1, 0))
        prototype.code, prototype.bits, prototype.lanes = 2, 64, 1
        prototype.ndim = len(shape or ())
        if shape:
            shape = (ctypes.c_int64 * len(shape))(*shape)
            prototype.shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
        for name, value in fields.items():
            setattr(prototype, name, value)
        places = ctypes.addressof(prototype), ctypes.addressof(content)
        answer = function(*places, None, ctypes.cast(note, c_void_p))
        return content.contents if answer == 0 else said.pop()

    return ask


def test_memory_is_allocated_by_c(allocate):
    content = allocate((3, 4))
    tensor = content.tensor
    assert tensor.data % 64 == 0
    assert (tuple(tensor.shape[:2]), tuple(tensor.strides[:2])) == ((3, 4), (4, 1))
    ctypes.memset(tensor.data, 255, 96)
    ctypes.CFUNCTYPE(None, c_void_p)(content.deleter)(ctypes.addressof(content))


@pytest.mark.parametrize(
    ("shape", "fields", "kind", "why"),
    [
        ((3,), {"device": (2, 0)}, "BufferError", "CUDA"),
        ((3,), {"ndim": -1}, "BufferError", "-1 axes"),
        ((3,), {"ndim": 65}, "BufferError", "65 axes"),
        (None, {"ndim": 2}, "BufferError", "no shape"),
        ((3, -1), {}, "BufferError", "negative"),
        ((2**40, 2**40), {}, "BufferError", "more than there can be"),
        ((2**45,), {}, "MemoryError", "memory"),
        ((3,), {"lanes": 2}, "BufferError", "vectors"),
        ((3,), {"code": 17, "bits": 4}, "BufferError", "code 17"),
    ],
    ids=str,
)
def test_no_memory_is_allocated_for_nonsense(allocate, shape, fields, kind, why):
    found, text = allocate(shape, **fields)
    assert found == kind
    assert why in text
