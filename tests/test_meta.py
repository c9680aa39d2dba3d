import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropeway import _meta

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(values)
def test_what_is_encoded_is_decoded(value):
    assert _meta.decode(_meta.encode(value)) == value


def test_no_bytes_are_none():
    assert _meta.decode(b"") is None


def test_nan_and_infinities_are_kept():
    nan, *rest = _meta.decode(_meta.encode([math.nan, math.inf, -math.inf]))
    assert math.isnan(nan)
    assert rest == [math.inf, -math.inf]


def test_scalars_of_numpy_become_pythons():
    value = {"a": np.int64(3), "b": np.float32(0.5), "c": np.bool_(True), "d": np.str_("x")}
    decoded = _meta.decode(_meta.encode(value))
    assert decoded == {"a": 3, "b": 0.5, "c": True, "d": "x"}
    assert [type(x) for x in decoded.values()] == [int, float, bool, str]


def test_tuples_become_lists():
    assert _meta.decode(_meta.encode(((1, 2), ()))) == [[1, 2], []]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"x", r"slot\.meta is of type bytes"),
        ({"a": [1, {"b": 1j}]}, r"slot\.meta\['a'\]\[1\]\['b'\] is of type complex"),
        ({"a": np.zeros((2, 3))}, r"slot\.meta\['a'\] is an array of shape \(2, 3\); put it into"),
        ([{3: 1}], r"slot\.meta\[0\] has the key 3 of type int; a key must be a str"),
        ({"a": {1, 2}}, r"slot\.meta\['a'\] is of type set"),
    ],
)
def test_anything_else_is_refused_by_its_way(value, message):
    with pytest.raises(TypeError, match=message):
        _meta.encode(value)
