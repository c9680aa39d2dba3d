"""Caffe reads slots where they lie, one for each step; what would end the process is an error."""

import gc
import multiprocessing
import os
import subprocess
import sys
import textwrap

import caffe
import numpy as np
import pytest

import ropeway as rw
import ropeway.caffe
from capsules import address
from slots import state, taken

caffe.set_mode_cpu()
B, C, H, W = SHAPE = (16, 3, 8, 8)
FIELDS = {"image": (SHAPE, "f4"), "label": ((B,), "f4")}
DATA = f"""
layer {{ name: "in" type: "MemoryData" top: "data" top: "label"
  memory_data_param {{ batch_size: {B} channels: {C} height: {H} width: {W} }} }}
"""
LOSS = """
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
  inner_product_param { num_output: 1 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "EuclideanLoss" bottom: "ip" bottom: "label" top: "loss" }
"""
MEAN = """
layer { name: "mean" type: "Pooling" bottom: "data" top: "mean"
  pooling_param { pool: AVE global_pooling: true } }
layer { name: "rest" type: "Silence" bottom: "label" }
"""
RELU = 'layer { name: "relu" type: "ReLU" bottom: "data" top: "data" }\n'
ONE = """
layer { name: "one" type: "Concat" bottom: "data" top: "one" }
layer { name: "relu" type: "ReLU" bottom: "one" top: "one" }
layer { name: "rest" type: "Silence" bottom: "one" bottom: "label" }
"""
TWO = """
layer { name: "two" type: "Concat" bottom: "data" bottom: "data" top: "two" }
layer { name: "relu" type: "ReLU" bottom: "two" top: "two" }
layer { name: "rest" type: "Silence" bottom: "two" bottom: "label" }
"""
FLAT = """
layer { name: "flat" type: "Flatten" bottom: "data" top: "flat" }
layer { name: "relu" type: "ReLU" bottom: "flat" top: "flat" }
layer { name: "rest" type: "Silence" bottom: "flat" bottom: "label" }
"""


@pytest.fixture
def net(tmp_path):
    """Makes a net whose first layer is fed from memory."""

    def make(body=MEAN, data=DATA):
        path = tmp_path / "net.prototxt"
        path.write_text(data + body)
        return caffe.Net(str(path), caffe.TRAIN)

    return make


@pytest.fixture
def solver(tmp_path, net):
    """Makes a solver of such a net."""

    def make(more="", body=LOSS):
        net(body)
        path = tmp_path / "solver.prototxt"
        path.write_text(
            f'train_net: "{tmp_path}/net.prototxt" base_lr: 0.001 lr_policy: "fixed" display: 0 '
            f"max_iter: 1000 solver_mode: CPU snapshot_after_train: false {more}"
        )
        return caffe.SGDSolver(str(path))

    return make


def packed():
    return rw.Pool(3, fields=FIELDS)


def publish(pool, *values):
    for value in values:
        with pool.acquire(timeout=30) as slot:
            slot["image"][...] = value
            slot["label"][...] = value
            slot.publish()


def fill(pool, batches):
    publish(pool, *range(1, batches + 1))
    pool.close()


def test_a_net_reads_slots_where_they_lie_in_the_order_they_were_published(net):
    pool = packed()
    reader, ring = net(), pool.ring("image")
    feeder = ropeway.caffe.Feeder(reader, pool, "image", "label")
    publish(pool, 1, 2)
    for value in (1, 2):
        with feeder.batch() as slot:
            index = slot.index
            outputs = reader.forward()
            assert address(reader.blobs["data"].data) == address(ring[index])
            assert address(reader.blobs["label"].data) == address(pool.ring("label")[index])
            assert (outputs["mean"] == value).all()
    first = pool.acquire()
    publish(pool, 4)
    publish(pool, 5)
    with first:  # published last, though it comes first in the ring
        first["image"][...] = 6
        first.publish()
    assert [feeder.forward()["mean"][0, 0, 0, 0] for _ in range(3)] == [4, 5, 6]
    pool.close()
    assert feeder.forward() is None


def test_another_process_fills_and_the_solver_learns(solver):
    pool = packed()
    child = multiprocessing.get_context("spawn").Process(target=fill, args=(pool, 20))
    child.start()
    student = solver()
    before = student.net.params["ip"][0].data.copy()
    feeder = ropeway.caffe.Feeder(student, pool, "image", "label")
    steps = 0
    while feeder.step(timeout=60):
        steps += 1
    child.join(60)
    assert child.exitcode == 0
    assert steps == 20 == student.iter
    assert not np.array_equal(before, student.net.params["ip"][0].data)


def test_the_slot_is_held_until_the_backward_pass_is_over(net):
    """Backward reads the data: what is written in between changes the gradient of the weights."""
    pool = packed()
    reader = net("force_backward: true" + LOSS)
    feeder = ropeway.caffe.Feeder(reader, pool, "image", "label")
    publish(pool, 1)
    with feeder.batch() as slot:
        reader.forward()
        reader.backward()
        assert pool.status().slots[slot.index].state == "held-read"
        gradient = reader.params["ip"][0].diff.copy()
        assert np.abs(gradient).sum() > 0
    assert all(s.state in ("idle", "absent") for s in pool.status().slots)


def test_a_wait_for_a_slot_can_time_out_and_nothing_is_lost(solver):
    pool = packed()
    feeder = ropeway.caffe.Feeder(solver(), pool, "image", "label")
    with pytest.raises(rw.Timeout):
        feeder.step(timeout=0.01)
    publish(pool, 1)
    assert feeder.step(timeout=5)


def test_forward_before_the_first_batch_waits_for_one(net):
    pool = packed()
    feeder = ropeway.caffe.Feeder(net(), pool, "image", "label")
    with pytest.raises(rw.Timeout):
        feeder.forward(timeout=0.01)
    pool.close()
    assert feeder.forward() is None


def test_each_batch_is_read_once(net):
    pool = packed()
    reader = net()
    feeder = ropeway.caffe.Feeder(reader, pool, "image", "label")
    publish(pool, 1, 2, 3)
    with pytest.raises(rw.Incompatible, match="one forward pass"), feeder.batch():
        pass
    with pytest.raises(rw.Incompatible, match="one forward pass"), feeder.batch():
        _ = reader.forward(), reader.forward()
    assert feeder.forward()["mean"][0, 0, 0, 0] == 3
    with pytest.raises(TypeError, match="solver"):
        feeder.step()


def test_solvers_that_read_several_batches_a_step_are_refused(solver):
    pool = packed()
    feeder = ropeway.caffe.Feeder(solver("iter_size: 2"), pool, "image", "label")
    publish(pool, 1)
    with pytest.raises(rw.Incompatible, match="iter_size"):
        feeder.step()


def test_test_nets_that_nobody_would_feed_are_refused(solver, tmp_path):
    pool = packed()
    tested = solver(f'test_net: "{tmp_path}/net.prototxt" test_iter: 1 test_interval: 10')
    with pytest.raises(rw.Incompatible, match="test net 0"):
        ropeway.caffe.Feeder(tested, pool, "image", "label")


@pytest.mark.parametrize("body", [RELU + MEAN, FLAT, ONE])
def test_a_net_that_writes_its_input_takes_slots_to_write(net, body):
    pool = packed()
    with pytest.raises(rw.Incompatible, match="relu"):
        ropeway.caffe.Feeder(net(body), pool, "image", "label")
    writer = net(body)
    feeder = ropeway.caffe.Feeder(writer, pool, "image", "label", write=True)
    publish(pool, -1)
    with feeder.batch() as slot:
        writer.forward()
        assert (slot["image"] == 0).all()
    status = pool.status()
    assert all(s.state in ("idle", "absent") for s in status.slots)
    assert not status.lost


def test_a_net_that_changes_a_copy_of_its_input_only_reads(net):
    pool = packed()
    reader = net(TWO)
    feeder = ropeway.caffe.Feeder(reader, pool, "image", "label")
    publish(pool, -1)
    with feeder.batch() as slot:
        reader.forward()
        assert (slot["image"] == -1).all()


def test_pools_that_do_not_fit_are_refused(net):
    def refused(why, error=rw.Incompatible, **fields):
        pool = rw.Pool(2, fields={**FIELDS, **fields})
        with pytest.raises(error, match=why):
            ropeway.caffe.Feeder(net(), pool, "image", "label")

    refused("float32", image=(SHAPE, "f8"))
    refused("float32 in native byte order", image=(SHAPE, ">f4"))
    refused("float32", label=((B,), "i4"))
    refused("shape", image=((B, C, H, 2 * W), "f4"))
    refused("shape", image=((2 * B, C, H, W), "f4"))
    refused("label", label=((2 * B,), "f4"))
    refused("packed", other=((3,), "u1"))
    with pytest.raises(rw.NoSuch, match="images"):
        ropeway.caffe.Feeder(net(), rw.Pool(2, fields=FIELDS), "images", "label")
    generated = 'layer { name: "in" type: "DummyData" top: "data" dummy_data_param { shape {} } }'
    plain = net("", generated)
    with pytest.raises(rw.Incompatible, match="MemoryData"):
        ropeway.caffe.Feeder(plain, rw.Pool(2, fields=FIELDS), "image", "label")


def good():
    return rw.zeros((2 * B, C, H, W), "f4"), rw.zeros(2 * B, "f4")


BAD = {
    "big-endian data": lambda x, y: (x.astype(">f4"), y),
    "float64 data": lambda x, y: (x.astype("f8"), y),
    "data in Fortran order": lambda x, y: (np.asfortranarray(x + 1), y),
    "every second row": lambda x, y: (np.repeat(x, 2, axis=0)[::2], y),
    "no axis for channels": lambda x, y: (x[:, 0], y),
    "other channels": lambda x, y: (x[:, :1].copy(), y),
    "no rows": lambda x, y: (x[:0], y[:0]),
    "half a batch": lambda x, y: (x[: B // 2], y[: B // 2]),
    "a list": lambda x, y: (x.tolist(), y),
    "a list of labels": lambda x, y: (x, y.tolist()),
    "integer labels": lambda x, y: (x, y.astype("i4")),
    "big-endian labels": lambda x, y: (x, y.astype(">f4")),
    "labels in a column": lambda x, y: (x, y.reshape(-1, 1)),
    "too few labels": lambda x, y: (x, y[:B]),
}


@pytest.mark.parametrize("what", BAD)
def test_what_caffe_takes_wrongly_or_ends_the_process_for_is_an_error(net, what):
    with pytest.raises((TypeError, rw.Incompatible), match="must"):
        ropeway.caffe.set_input_arrays(net(), *BAD[what](*good()))


def test_read_only_arrays_are_given_to_nets_that_only_read(net):
    data, labels = good()
    data[...] = -1
    data.flags.writeable = False
    with pytest.raises(rw.Incompatible, match="relu"):
        ropeway.caffe.set_input_arrays(net(RELU + MEAN), data, labels)
    reader = net()
    ropeway.caffe.set_input_arrays(reader, data, labels)
    assert (reader.forward()["mean"] == -1).all()
    assert address(reader.blobs["data"].data) == address(data)


def test_a_slot_that_was_given_to_a_net_is_held_until_the_net_is_gone(net, eventually):
    pool, slot = taken(SHAPE, value=2, private=True)
    reader = net()
    ropeway.caffe.set_input_arrays(reader, slot.array, np.zeros(B, "f4"))
    with slot:
        pass
    assert (reader.forward()["mean"] == 2).all()
    assert state(pool) == "held-read"
    del reader
    assert eventually(lambda: state(pool) == "idle")


def test_a_feeder_costs_no_memory_with_each_batch(net):
    pool = packed()
    feeder = ropeway.caffe.Feeder(net(), pool, "image", "label")

    def resident():
        with open("/proc/self/statm") as numbers:
            return int(numbers.read().split()[1]) * os.sysconf("SC_PAGESIZE")

    def run(batches):
        for _ in range(batches):
            publish(pool, 1)
            assert feeder.forward(timeout=10)

    run(500)
    before = resident()
    run(3000)
    assert resident() - before < 300_000  # by calls of set_input_arrays it would be 675,000


def test_the_pool_may_go_before_the_net(net):
    pool = packed()
    reader = net()
    feeder = ropeway.caffe.Feeder(reader, pool, "image", "label")
    publish(pool, 7)
    feeder.forward()
    del pool, feeder
    gc.collect()
    assert (reader.blobs["data"].data == 7).all()
    del reader


def test_what_is_refused_here_ends_the_process_in_caffe(tmp_path):
    """If this fails, Caffe has learned to check, and ropeway needn't any more."""
    (tmp_path / "net.prototxt").write_text(DATA + MEAN)
    program = f"""
        import sys, numpy as np, caffe
        net = caffe.Net("{tmp_path}/net.prototxt", caffe.TRAIN)
        if sys.argv[1] == "no rows":
            net.set_input_arrays(np.zeros((0, {C}, {H}, {W}), "f4"), np.zeros(0, "f4"))
        net.forward()
    """
    for what in ("no rows", "nothing given"):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program), what],
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert done.returncode < 0, what


@pytest.mark.parametrize("order", ["caffe mxnet torch", "torch mxnet caffe", "mxnet torch caffe"])
def test_numpy_mxnet_caffe_and_torch_read_one_slot_in_one_process(tmp_path, order):
    (tmp_path / "net.prototxt").write_text(DATA + MEAN)
    program = f"""
        import importlib, sys, warnings
        warnings.simplefilter("ignore")
        import numpy as np
        np.bool = np.bool_
        for name in sys.argv[1:]:
            importlib.import_module(name)
        import caffe, torch
        import ropeway as rw, ropeway.caffe, ropeway.mxnet

        def place(array):
            return array.__array_interface__["data"][0]

        def states():
            return {{s.state for s in pool.status().slots}}

        pool = rw.Pool(2, fields={FIELDS!r})
        net = caffe.Net("{tmp_path}/net.prototxt", caffe.TRAIN)
        feeder = ropeway.caffe.Feeder(net, pool, "image", "label", write=True)
        with pool.acquire() as slot:
            slot["image"][...] = np.arange({B * C * H * W}).reshape({SHAPE})
            slot.publish()
        with feeder.batch() as slot:
            array = slot["image"]
            ours, tensor = np.from_dlpack(array), rw.asarray(array, like="torch")
            there = rw.asarray(array, like="mxnet")
            mean = net.forward()["mean"].mean()
            blob = net.blobs["data"].data
            places = [place(ours), tensor.data_ptr(), ropeway.mxnet.address(there), place(blob)]
            assert places == [place(array)] * 4
            means = [there.mean().asscalar(), mean, array.mean(), ours.mean(), tensor.mean().item()]
            assert means == [array.mean()] * 5
            there[:] = 3
            ropeway.mxnet.wait(there)
            for seen in (array, ours, blob, tensor):
                assert (seen == 3).all()
            tensor += 1
            for seen in (array, ours, blob, there.asnumpy()):
                assert (seen == 4).all()
            keepers = [ours, tensor, there]
            del array, ours, tensor, there, seen
        while keepers:
            assert "held-write" in states()
            keepers.pop()
        assert states() <= {{"idle", "absent"}}
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *order.split()],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
