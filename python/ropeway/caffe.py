"""Caffe 1.0: feeds the MemoryData layer of a net from the slots of a pool, in place.

Caffe copies nothing and checks little: it keeps every array that it was ever given until the net is
gone, walks through the last one batch by batch, and reads a batch until the backward pass is over.
So the ring of a packed pool is given to it once, and a slot is held for one whole step. What Caffe
takes wrongly, or ends the process for, is an exception here.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from ropeway._core import ReadLease, WriteLease
from ropeway._errors import Closed, Incompatible, PeerDied
from ropeway._extent import address
from ropeway._pool import Pool
from ropeway._views import AnyArray

__all__ = ["Feeder", "set_input_arrays"]

# Layers whose outputs are their input's memory; Concat and Slice only of one input to one output.
_SHARING = ("Split", "Flatten", "Reshape")
_SHARING_ONE = (*_SHARING, "Concat", "Slice")


class Feeder:
    """Hands the slots of a pool to a net, one for each step, where they lie.

    The pool is packed and has two float32 fields, images of shape (N, C, H, W) as the net's
    MemoryData layer says, and labels of shape (N,) or (N, 1, 1, 1):

        feeder = ropeway.caffe.Feeder(solver, pool, "image", "label")
        while feeder.step():
            print(solver.net.blobs["loss"].data)

    A net that changes its input in place (a ReLU on the data, say) takes `write=True`.
    """

    def __init__(
        self,
        target: Any,
        pool: Pool,
        images: str,
        labels: str,
        *,
        write: bool = False,
    ) -> None:
        """Gives the pool's ring to a `caffe.SGDSolver` (or another solver) or a `caffe.Net`.

        The slots are taken at the pool's last stage. Raises Incompatible if pool and net don't fit,
        or if the net would write into slots that are taken to read; NoSuch for a field that there
        isn't.
        """
        self._solver = target if hasattr(target, "step") else None
        self._net = target.net if self._solver is not None else target
        self._pool, self._write = pool, write
        for number, net in enumerate(self._solver.test_nets if self._solver is not None else ()):
            _refuse_unfed(net, f"test net {number} of the solver")
        ring, labels_ring = pool.ring(images), pool.ring(labels)
        self._data, _, shape = _tops(self._net)
        if ring.shape[1:] != shape:
            raise Incompatible(
                f"field {images!r} has shape {ring.shape[1:]}; the net's MemoryData layer takes "
                f"{shape}"
            )
        if labels_ring.shape[1:] not in (shape[:1], (shape[0], 1, 1, 1)):
            raise Incompatible(
                f"field {labels!r} has shape {labels_ring.shape[1:]}; the net takes one label for "
                f"each image, shape {shape[:1]}"
            )
        self._slots, self._start = len(ring), address(ring)
        self._stride = ring.nbytes // self._slots
        _give(self._net, ring.reshape(-1, *shape[1:]), labels_ring.reshape(-1), write)
        self._seek(0)

    def step(self, timeout: float | None = None) -> bool:
        """Waits for a slot and does one step of the solver with it; the slot is free afterwards.

        False when the pool is closed and drained. Raises Timeout, PeerDied; Incompatible if the
        solver has read more than one slot (its `iter_size` is larger than 1).
        """
        if self._solver is None:
            raise TypeError("a net alone has no step(): make the feeder of a solver, or forward()")
        with self._until_drained() as more, self.batch(timeout):
            self._solver.step(1)
        return more[0]

    def forward(self, timeout: float | None = None) -> dict[str, AnyArray] | None:
        """Waits for a slot and runs the net on it; copies of the outputs, None at the end."""
        outputs: dict[str, AnyArray] | None = None
        with self._until_drained(), self.batch(timeout):
            outputs = {name: blob.copy() for name, blob in self._net.forward().items()}
        return outputs

    @contextlib.contextmanager
    def batch(self, timeout: float | None = None) -> Iterator[ReadLease | WriteLease]:
        """Takes a slot, and points Caffe at it for one forward pass in the block.

        Backward passes of the block still read it. Raises Closed at the end of the pool, Timeout,
        and Incompatible if Caffe hasn't read that slot last when the block ends.
        """
        slot = self._pool.take(write=self._write, timeout=timeout)
        with slot:
            self._seek(slot.index)
            yield slot
            last = self._last()
            if last != slot.index:
                raise Incompatible(
                    f"slot {slot.index} was to be read once and Caffe read slot {last} last: one "
                    "forward pass for each batch, and iter_size 1 for a solver"
                )

    def _last(self) -> int:
        """The slot that Caffe has read last."""
        place = address(self._net.blobs[self._data].data)
        return (place - self._start) // self._stride

    def _seek(self, slot: int) -> None:
        """Moves Caffe's place in the ring so that it reads a slot next.

        The first layer alone only sets pointers, to where the next batch begins.
        """
        before = (slot - 1) % self._slots
        for _ in range(self._slots + 1):
            if self._last() == before:
                return
            self._net._forward(0, 0)
        raise Incompatible(
            "the net has been given other arrays since: make a new feeder of a net of its own"
        )

    @contextlib.contextmanager
    def _until_drained(self) -> Iterator[list[bool]]:
        """Turns the end of the pool into False."""
        more = [True]
        try:
            yield more
        except PeerDied:
            raise
        except Closed:
            more[0] = False


def set_input_arrays(net: Any, data: AnyArray, labels: AnyArray) -> None:
    """`net.set_input_arrays` with all the checks that Caffe leaves out.

    The net keeps both arrays for as long as it lives, also after others were given to it: a slot
    that they belong to stays held. Use a `Feeder` for more than a few batches. Raises TypeError for
    what is no ndarray, Incompatible for shapes, dtypes, byte orders and memory orders that Caffe
    can't take, for arrays of no rows, and for read-only ones that the net would write.
    """
    _give(net, data, labels, write=data.flags.writeable if isinstance(data, np.ndarray) else True)


def _give(net: Any, data: AnyArray, labels: AnyArray, write: bool) -> None:
    """Checks everything, then gives the arrays to Caffe."""
    blob, label_blob, shape = _tops(net)
    _check("data", data)
    _check("labels", labels)
    if data.ndim != 4 or data.shape[1:] != shape[1:]:
        raise Incompatible(
            f"data must have shape (N, {', '.join(map(str, shape[1:]))}), found {data.shape}"
        )
    rows = len(data)
    if rows == 0 or rows % shape[0]:
        raise Incompatible(
            f"data must have a multiple of {shape[0]} rows, the layer's batch_size; found {rows}"
        )
    if labels.shape not in ((rows,), (rows, 1, 1, 1)):
        raise Incompatible(f"labels must have shape ({rows},), found {labels.shape}")
    if not write and (layer := _writes_in_place(net, {blob, label_blob})):
        raise Incompatible(
            f"layer {layer!r} changes the net's input in place, and this memory may only be read: "
            "give the layer another top, or let it be written (write=True)"
        )
    net.set_input_arrays(data, labels)


def _check(what: str, array: Any) -> None:
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{what} must be an ndarray, found {type(array).__name__}")
    if array.dtype != np.float32 or not array.dtype.isnative:
        raise Incompatible(f"{what} must be float32 in native byte order, found {array.dtype.str}")
    if not array.flags.c_contiguous:
        raise Incompatible(f"{what} must be in C order without gaps: give it x.copy()")


def _tops(net: Any) -> tuple[str, str, tuple[int, ...]]:
    """Names of the data and label blobs, and the shape of the data."""
    if net.layers[0].type != "MemoryData":
        raise Incompatible(
            f"the net's first layer must be of type MemoryData, found {net.layers[0].type}"
        )
    data, label = net.top_names[net._layer_names[0]]
    return data, label, tuple(net.blobs[data].shape)


def _writes_in_place(net: Any, inputs: set[str]) -> str | None:
    """The first layer that writes over the net's input, if any does."""
    for name, layer in zip(net._layer_names, net.layers, strict=True):
        tops, bottoms = net.top_names[name], net.bottom_names[name]
        if not inputs.isdisjoint(bottoms):
            if layer.type in (_SHARING_ONE if len(tops) == len(bottoms) == 1 else _SHARING):
                inputs |= set(tops)
            elif not inputs.isdisjoint(tops):
                return str(name)
    return None


def _refuse_unfed(net: Any, what: str) -> None:
    if net.layers[0].type == "MemoryData":
        raise Incompatible(
            f"{what} is fed from memory too, nobody would feed it, and Caffe would end the "
            "process: leave it out, and call forward() of a feeder for a net of its own"
        )
