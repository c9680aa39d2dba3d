import json
import sys

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from ropeway import Incompatible, _dtypes

ML = [
    np.dtype(scalar)
    for scalar in vars(ml_dtypes).values()
    if isinstance(scalar, type) and issubclass(scalar, np.generic)
]


def same(one, other):
    """Equality that also looks at what NumPy's own `==` passes over."""
    if one.subdtype is not None:
        return one == other and same(one.base, other.base)
    plain = (one.itemsize, one.alignment, one.isalignedstruct, one.type, one.names)
    if one != other or plain != (
        other.itemsize,
        other.alignment,
        other.isalignedstruct,
        other.type,
        other.names,
    ):
        return False
    if one.fields is None:
        return other.fields is None
    return one.fields.keys() == other.fields.keys() and all(
        same(part[0], other.fields[name][0]) and part[1:] == other.fields[name][1:]
        for name, part in one.fields.items()
    )


plain_dtypes = st.one_of(
    npst.scalar_dtypes(),
    npst.byte_string_dtypes(min_len=1),
    npst.unicode_string_dtypes(min_len=1),
    st.integers(1, 40).map(lambda n: np.dtype(f"V{n}")),
    st.sampled_from(ML),
    st.sampled_from([np.dtype(t) for t in ("g", "G", "m8[25s]", "M8[D]", "M8", ">M8[7us]")]),
)
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


@st.composite
def struct_dtypes(draw, parts):
    labels = draw(st.lists(names, min_size=1, max_size=4, unique=True))
    fields = [labels, [draw(parts) for _ in labels]]
    count = len(labels) // 2 if draw(st.booleans()) else len(labels)
    titles = labels[count:] and [None] * count + [f"title of {x}" for x in labels[count:]]
    spec = {"names": fields[0], "formats": fields[1]}
    if titles:
        spec["titles"] = titles
    if draw(st.booleans()):
        return np.dtype(spec, align=draw(st.booleans()))
    end = 0
    spec["offsets"] = []
    for part in fields[1]:
        end += draw(st.integers(0, 9))
        spec["offsets"].append(end)
        end += part.itemsize
    spec["itemsize"] = end + draw(st.integers(0, 9))
    return np.dtype(spec)


def nested(parts):
    lengths = st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple)
    subs = st.tuples(parts, lengths).map(np.dtype)
    structs = struct_dtypes(parts | subs)
    return structs | structs.map(lambda d: np.dtype((np.record, d)))


dtypes = st.recursive(plain_dtypes, nested, max_leaves=8)


@given(dtypes)
def test_what_is_encoded_is_decoded(dtype):
    assert same(_dtypes.decode(_dtypes.encode(dtype)), dtype)


@pytest.mark.parametrize(
    ("dtype", "text"),
    [
        ("float32", "<f4"),
        (">i2", ">i2"),
        (bool, "|b1"),
        ("M8[ns]", "<M8[ns]"),
        (ml_dtypes.bfloat16, "bfloat16"),
        (ml_dtypes.int4, "int4"),
    ],
)
def test_simple_dtypes_are_readable_texts(dtype, text):
    assert _dtypes.encode(dtype) == text


@pytest.mark.parametrize(
    "dtype",
    [
        np.dtype((np.int32, {"low": (np.int16, 0), "high": (np.int16, 2)})),
        np.dtype({"names": [], "formats": [], "itemsize": 8}),
        np.dtype([]),
        np.dtype(("f4", (2, 3))),
        np.dtype("S0"),
        np.dtype([("a", "i1"), ("b", [("c", ml_dtypes.bfloat16), ("d", "f8")], (2,))], align=True),
    ],
)
def test_rare_dtypes_survive(dtype):
    assert same(_dtypes.decode(_dtypes.encode(dtype)), dtype)


def test_renaming_the_fields_of_one_array_changes_no_other():
    text = _dtypes.encode([("a", "f4"), ("b", "u1")])
    _dtypes.decode(text).names = ("x", "y")
    assert _dtypes.decode(text).names == ("a", "b")


@pytest.mark.parametrize(
    "dtype",
    [object, [("a", "f4"), ("b", object)], [("a", [("b", object, (2,))])]],
    ids=["object", "field", "nested"],
)
def test_python_objects_are_refused(dtype):
    with pytest.raises(TypeError, match=r"object.*Convert"):
        _dtypes.encode(dtype)


def test_foreign_byte_order_of_ml_dtypes_is_refused():
    with pytest.raises(TypeError, match="native byte order"):
        _dtypes.encode(np.dtype(ml_dtypes.bfloat16).newbyteorder())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "|O",
        "O",
        "|O8",
        "f4",
        "float64",
        "os.system",
        "<f5",
        "[",
        "{}",
        "[1]",
        '["<f4",[-1]]',
        '{"names":["a"],"formats":["|O8"],"offsets":[0],"itemsize":8}',
        '{"names":["a"],"formats":["<f4"],"offsets":[-4],"itemsize":8}',
        '{"names":["a"],"formats":["<f4"],"offsets":[0],"itemsize":2}',
        '{"names":"a","formats":7,"offsets":[0],"itemsize":8}',
        '{"names":["a"],"formats":["<f4"],"offsets":[1e99],"itemsize":8}',
        "[" * 100_000,
        "null",
    ],
)
def test_other_texts_are_refused(text):
    if text == "f4":  # what NumPy itself understands may be understood
        assert _dtypes.decode(text) == np.dtype("f4")
        return
    with pytest.raises(Incompatible, match="isn't the text of a dtype"):
        _dtypes.decode(text)


@given(st.text() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_any_text_is_decoded_or_refused(text):
    try:
        dtype = _dtypes.decode(text)
    except Incompatible:
        return
    assert not dtype.hasobject


def test_encoding_does_not_import_ml_dtypes(fresh):
    code = """
        import sys, numpy as np
        from ropeway import _dtypes
        _dtypes.encode([("a", "f4"), ("b", "M8[s]")])
        print("ml_dtypes" in sys.modules)
    """
    assert fresh(code) == "False\n"


def test_a_missing_ml_dtypes_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    _dtypes._decode_plain.cache_clear()
    with pytest.raises(ImportError, match=r"bfloat16.*ml_dtypes"):
        _dtypes.decode("bfloat16")
