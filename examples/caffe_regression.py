"""Two loaders turn photos by random angles, and a Caffe net finds the angles, all in one memory.

Each slot of the pool is a batch: images and, in a region of their own, labels. Caffe is given the
whole ring once, reads each slot where it lies, and gives it back after the step. Caffe needs a
build of its own; `make test-frameworks FRAMEWORKS=caffe` makes one and runs this.
"""

import multiprocessing
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import ropeway as rw
from ropeway.demo.photos import decode, packaged_photos
from ropeway.demo.spans import merged, shared

BATCH, SIDE, LARGEST_ANGLE = 64, 32, 45.0
STEPS, LOADERS = 300, 2
FIELDS = {"image": ((BATCH, 3, SIDE, SIDE), "float32"), "label": ((BATCH,), "float32")}
NET = f"""
layer {{ name: "in" type: "MemoryData" top: "image" top: "label"
  memory_data_param {{ batch_size: {BATCH} channels: 3 height: {SIDE} width: {SIDE} }} }}
layer {{ name: "conv1" type: "Convolution" bottom: "image" top: "conv1" convolution_param {{
  num_output: 16 kernel_size: 5 stride: 2 weight_filler {{ type: "msra" }} }} }}
layer {{ name: "relu1" type: "ReLU" bottom: "conv1" top: "conv1" }}
layer {{ name: "conv2" type: "Convolution" bottom: "conv1" top: "conv2" convolution_param {{
  num_output: 32 kernel_size: 3 stride: 2 weight_filler {{ type: "msra" }} }} }}
layer {{ name: "relu2" type: "ReLU" bottom: "conv2" top: "conv2" }}
layer {{ name: "ip1" type: "InnerProduct" bottom: "conv2" top: "ip1"
  inner_product_param {{ num_output: 64 weight_filler {{ type: "msra" }} }} }}
layer {{ name: "relu3" type: "ReLU" bottom: "ip1" top: "ip1" }}
layer {{ name: "angle" type: "InnerProduct" bottom: "ip1" top: "angle"
  inner_product_param {{ num_output: 1 weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "loss" type: "EuclideanLoss" bottom: "angle" bottom: "label" top: "loss" }}
"""


def load(pool: rw.Pool, loader: int) -> None:
    """Fills slots with turned photos until as many as there are steps have been filled."""
    random = np.random.default_rng(loader)
    photos = [small(decode(path)) for path in packaged_photos()]
    for _ in range(STEPS // LOADERS):
        with pool.acquire(timeout=60) as slot:
            began = time.monotonic_ns()
            for row in range(BATCH):
                angle = random.uniform(-LARGEST_ANGLE, LARGEST_ANGLE)
                photo = photos[random.integers(len(photos))]
                pixels = np.asarray(turned(photo, angle))
                slot["image"][row] = pixels.transpose(2, 0, 1) / np.float32(127.5) - 1
                slot["label"][row] = angle / LARGEST_ANGLE
            slot.meta = {"loader": loader, "began": began, "ended": time.monotonic_ns()}
            slot.publish()


def small(photo: Image.Image) -> Image.Image:
    """A square of the photo that is just large enough to be turned."""
    side = min(photo.size)
    square = photo.crop((0, 0, side, side))
    return square.resize((2 * SIDE, 2 * SIDE), Image.Resampling.BOX)


def turned(photo: Image.Image, angle: float) -> Image.Image:
    """The middle of the photo, turned; it has no corners that would give the angle away."""
    low, high = SIDE // 2, 3 * SIDE // 2
    return photo.rotate(angle, Image.Resampling.BILINEAR).crop((low, low, high, high))


def make_solver(folder: Path) -> Any:
    """A solver of the net."""
    import caffe

    caffe.set_mode_cpu()
    caffe.set_random_seed(1)
    net, solver = folder / "net.prototxt", folder / "solver.prototxt"
    net.write_text(NET)
    solver.write_text(
        f'train_net: "{net}" type: "Adam" base_lr: 0.001 momentum: 0.9 momentum2: 0.999 '
        f'lr_policy: "fixed" max_iter: {STEPS} display: 0 snapshot_after_train: false'
    )
    return caffe.get_solver(str(solver))


def learn(solver: Any, pool: rw.Pool) -> tuple[list[float], list[Any], list[Any]]:
    """Does a step with each slot; the losses, and when loaders filled and the solver learned."""
    import ropeway.caffe

    feeder = ropeway.caffe.Feeder(solver, pool, "image", "label")
    ring = pool.ring("image")
    losses, filling, learning = [], [], []
    for _ in range(STEPS):
        with feeder.batch(timeout=60) as slot:
            began = time.monotonic_ns()
            solver.step(1)
            learning.append((began, time.monotonic_ns()))
            place = solver.net.blobs["image"].data.ctypes.data
            assert place == ring[slot.index].ctypes.data, "Caffe has read a copy"
            filling.append((slot.meta["began"], slot.meta["ended"]))
        losses.append(float(solver.net.blobs["loss"].data))
    return losses, filling, learning


def off(loss: float) -> float:
    """The error in degrees that half a mean squared error stands for."""
    return float(np.sqrt(2 * loss)) * LARGEST_ANGLE


def main() -> int:
    """Trains, and says how that went; 1 if the loss hasn't fallen."""
    pool = rw.Pool(2, fields=FIELDS)
    spawn = multiprocessing.get_context("spawn")
    loaders = [spawn.Process(target=load, args=(pool, n)) for n in range(LOADERS)]
    for loader in loaders:
        loader.start()
    with tempfile.TemporaryDirectory() as folder:
        losses, filling, learning = learn(make_solver(Path(folder)), pool)
    for loader in loaders:
        loader.join()
    first, last = np.mean(losses[:20]), np.mean(losses[-20:])
    busy = merged(learning)
    overlap = shared(busy, merged(filling)) / sum(end - began for began, end in busy)
    print(f"{STEPS} steps with batches of {BATCH}, from {LOADERS} loaders in 2 slots, none copied")
    print(f"loss {first:.4f} at first, {last:.4f} at last: off by {off(last):.1f} degrees or so")
    print(f"while the solver learned, a loader filled the other slot {overlap:.0%} of the time")
    return 0 if last < 0.7 * first and not any(loader.exitcode for loader in loaders) else 1


if __name__ == "__main__":
    sys.exit(main())
