"""ONNX Runtime looks at our memory, and the slot waits for it."""

import gc

import numpy as np
import onnx
import onnxruntime
import pytest

import ropeway as rw
import ropeway.onnxruntime
from capsules import address
from slots import state, taken

onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(1))  # starts its threads


@pytest.mark.parametrize("how", [{}, {"private": True}])
def test_onnxruntime_sees_the_same_memory(how):
    pool, slot = taken((4, 6), **how)
    value = rw.asarray(slot.array, like="onnxruntime")
    assert value.data_ptr() == address(slot.array)
    assert value.shape() == [4, 6]
    with pytest.raises(BufferError, match="complex64"):
        rw.asarray(rw.zeros(3, "c8"), like="onnxruntime")
    with slot:
        pass
    assert state(pool) == "held-read"
    del value
    gc.collect()
    assert state(pool) == "idle"


def model(kind=onnx.TensorProto.FLOAT):
    """y = x + x, z = x * x, with any number of rows of 6."""
    shape = ["n", 6]
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node("Add", ["x", "x"], ["y"]),
            onnx.helper.make_node("Mul", ["x", "x"], ["z"]),
        ],
        "twice",
        [onnx.helper.make_tensor_value_info("x", kind, shape)],
        [onnx.helper.make_tensor_value_info(name, kind, shape) for name in ("y", "z")],
    )
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    made.ir_version = 8
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(made.SerializeToString(), options)


def test_a_session_reads_one_slot_and_writes_another():
    session = model()
    _, slot = taken((4, 6), value=3)
    results = rw.Pool(1, shape=(4, 6), dtype="f4")
    out = results.acquire()
    with ropeway.onnxruntime.Binding(session, {"x": slot.array}, {"z": out.array}) as binding:
        with pytest.raises(rw.InUse, match="pointer"):
            slot.release()
        with pytest.raises(rw.InUse, match="pointer"):
            out.publish()
        binding.run()
        assert (out.array == 9).all()
        (name, y) = binding.results.popitem()
        assert name == "y"
        assert (y.numpy() == 6).all()
        del y
    with pytest.raises(rw.Invalid, match="released"):
        binding.run()
    with pytest.raises(rw.Invalid, match="released"):
        _ = binding.results
    binding.release()
    slot.release()
    out.publish()
    with results.take() as slot:
        assert (slot.array == 9).all()


def test_a_slot_waits_for_a_binding():
    pool, slot = taken((4, 6))
    binding = ropeway.onnxruntime.Binding(model(), {"x": slot.array})
    with slot:
        pass
    assert state(pool) == "held-read"
    binding.run()
    assert (binding.results["z"].numpy() == 1).all()
    binding.release()
    assert state(pool) == "idle"
    pool, slot = taken((4, 6))
    binding = ropeway.onnxruntime.Binding(model(), {"x": slot.array})
    with slot:
        pass
    del binding
    gc.collect()
    assert state(pool) == "idle"


def test_bindings_that_do_not_fit_are_refused_and_keep_nothing():
    session = model()
    _, slot = taken((4, 6))
    good, out = slot.array, rw.zeros((4, 6), "f4")
    frozen = rw.zeros((4, 6), "f4")
    frozen.flags.writeable = False
    for error, why, inputs, outputs in [
        (rw.Incompatible, "needs inputs", {}, {}),
        (rw.NoSuch, "no 'a'", {"x": good, "a": good}, {}),
        (rw.NoSuch, "no 'a'", {"x": good}, {"a": out}),
        (rw.Incompatible, "shape", {"x": rw.zeros((4, 5), "f4")}, {}),
        (rw.Incompatible, "shape", {"x": rw.zeros(6, "f4")}, {}),
        (rw.Incompatible, "shape", {"x": good}, {"y": rw.zeros((4, 7), "f4")}),
        (rw.Incompatible, "float", {"x": rw.zeros((4, 6), "f8")}, {}),
        (rw.Incompatible, "float", {"x": rw.zeros((4, 6), ">f4")}, {}),
        (rw.Incompatible, "float", {"x": good}, {"y": rw.zeros((4, 6), "i4")}),
        (BufferError, "C order", {"x": rw.zeros((4, 12), "f4")[:, ::2]}, {}),
        (BufferError, "ropeway's memory", {"x": np.zeros((4, 6), "f4")}, {}),
        (BufferError, "only be read", {"x": good}, {"y": frozen}),
        (BufferError, "only be read", {"x": good}, {"y": good}),
    ]:
        with pytest.raises(error, match=why):
            ropeway.onnxruntime.Binding(session, inputs, outputs)
    del good, inputs, outputs
    slot.release()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "int64"])
def test_numbers_are_bound_as_what_they_are(dtype):
    x, y = rw.share(np.full((2, 6), 3, dtype)), rw.zeros((2, 6), dtype)
    session = model(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
    with ropeway.onnxruntime.Binding(session, {"x": x}, {"y": y}) as binding:
        binding.run()
    assert (y == 6).all()
