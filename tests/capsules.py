"""DLPack by hand: looks into capsules, and makes some in which every field can be chosen."""

import ctypes
from ctypes import c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p

import numpy as np

READ_ONLY, IS_COPIED = 1, 2

_python = ctypes.PyDLL(None)
_new = _python.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, [c_void_p, c_char_p, c_void_p]
_pointer = _python.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = c_void_p, [ctypes.py_object, c_char_p]
_name = _python.PyCapsule_GetName
_name.restype, _name.argtypes = c_char_p, [ctypes.py_object]


class Tensor(ctypes.Structure):
    _fields_ = (
        ("data", c_void_p),
        ("device", c_int32 * 2),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", ctypes.POINTER(c_int64)),
        ("strides", ctypes.POINTER(c_int64)),
        ("byte_offset", c_uint64),
    )


class Unversioned(ctypes.Structure):
    _fields_ = (("tensor", Tensor), ("context", c_void_p), ("deleter", c_void_p))


class Versioned(ctypes.Structure):
    _fields_ = (
        ("version", c_uint32 * 2),
        ("context", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("tensor", Tensor),
    )


def managed(capsule):
    """What an unused capsule points to."""
    name = _name(capsule)
    kind = {b"dltensor": Unversioned, b"dltensor_versioned": Versioned}[name]
    return kind.from_address(_pointer(capsule, name))


class Seen:
    """What a capsule says."""

    def __init__(self, capsule):
        self.name = _name(capsule).decode()
        content = managed(capsule)
        tensor, ndim = content.tensor, content.tensor.ndim
        self.version = tuple(getattr(content, "version", ()))
        self.flags = getattr(content, "flags", None)
        self.data, self.byte_offset = tensor.data, tensor.byte_offset
        self.device = tuple(tensor.device)
        self.dtype = (tensor.code, tensor.bits, tensor.lanes)
        self.shape = tuple(tensor.shape[:ndim]) if tensor.shape else None
        self.strides = tuple(tensor.strides[:ndim]) if tensor.strides else None
        self.ndim = ndim


def used(capsule):
    """Whether somebody has taken what is in a capsule."""
    return _name(capsule).startswith(b"used_")


class Producer:
    """An object of another framework over the bytes of an array; counts what is asked of it."""

    def __init__(self, array, *, versioned=True, old=False, device=(1, 0), **fields):
        self.array, self.versioned, self.old, self.device = array, versioned, old, device
        self.fields = fields
        self.asked = self.deleted = 0
        self._kept = []

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **options):
        self.asked += 1
        if self.old and options:
            raise TypeError("no arguments expected")
        content = Versioned() if self.versioned else Unversioned()
        kind = type(content)
        deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(kind))(self._delete)
        content.deleter = ctypes.cast(deleter, c_void_p)
        if self.versioned:
            content.version[:] = self.fields.get("version", (1, 0))
            content.flags = self.fields.get("flags", 0)
        self._describe(content.tensor)
        self._kept += [content, deleter]
        name = b"dltensor_versioned" if self.versioned else b"dltensor"
        self._names = ctypes.create_string_buffer(name)
        return _new(ctypes.addressof(content), ctypes.cast(self._names, c_char_p), None)

    def _describe(self, tensor):
        array, fields = self.array, self.fields
        shape = fields.get("shape", array.shape)
        strides = fields.get("strides", [s // array.itemsize for s in array.strides])
        tensor.data = fields.get("data", array.ctypes.data)
        tensor.device[:] = self.device
        tensor.ndim = fields.get("ndim", len(shape))
        code = {"f": 2, "i": 0, "u": 1, "b": 6, "c": 5}.get(array.dtype.kind, 2)
        default = (code, array.itemsize * 8, 1)
        tensor.code, tensor.bits, tensor.lanes = fields.get("dtype", default)
        for what, numbers in (("shape", shape), ("strides", strides)):
            if numbers is not None:
                kept = (c_int64 * 80)(*numbers)
                self._kept.append(kept)
                setattr(tensor, what, ctypes.cast(kept, ctypes.POINTER(c_int64)))
        tensor.byte_offset = fields.get("byte_offset", 0)

    def _delete(self, _):
        self.deleted += 1


class Handed:
    """Hands on one capsule."""

    def __init__(self, capsule):
        self.capsule = capsule

    def __dlpack__(self, **options):
        return self.capsule

    def __dlpack_device__(self):
        return 1, 0


def address(array):
    return np.asarray(array).__array_interface__["data"][0]
