"""ONNX Runtime: sessions that read and write slots where they lie.

`ropeway.asarray(x, like="onnxruntime")` gives an OrtValue that keeps the slot. A binding by address
(`IOBinding.bind_input`) keeps nothing, which `Binding` does instead.
"""

from collections.abc import Mapping
from typing import Any, Self

from ropeway._core import Pointer
from ropeway._errors import Incompatible, Invalid, NoSuch
from ropeway._views import AnyArray

__all__ = ["Binding"]

# ONNX Runtime's own names of dtypes, and ONNX's numbers for those that NumPy lacks.
_NAMES = {
    "float32": "float",
    "float64": "double",
    "float8_e4m3fn": "float8e4m3fn",
    "float8_e5m2": "float8e5m2",
}
_NUMBERS = {"bfloat16": 16, "float8_e4m3fn": 17, "float8_e5m2": 19}


class Binding:
    """Arrays of slots as the inputs and outputs of a session, at their addresses, until released.

        with ropeway.onnxruntime.Binding(session, {"x": slot["image"]}, {"y": out["y"]}) as binding:
            binding.run()

    The slots stay where they are until the end of the block. Outputs that aren't given are made by
    ONNX Runtime, and are in `results`.
    """

    def __init__(
        self,
        session: Any,
        inputs: Mapping[str, AnyArray],
        outputs: Mapping[str, AnyArray] | None = None,
    ) -> None:
        """Binds arrays in ropeway's memory to an `onnxruntime.InferenceSession`.

        Raises NoSuch for names that the session doesn't have, Incompatible for inputs that are
        missing and for dtypes and shapes that the model doesn't take, BufferError for arrays with
        gaps, outside of ropeway's memory, and for outputs that may only be read.
        """
        outputs = outputs or {}
        wanted_in = {node.name: node for node in session.get_inputs()}
        wanted_out = {node.name: node for node in session.get_outputs()}
        if missing := set(wanted_in) - set(inputs):
            raise Incompatible(f"the model needs inputs {sorted(missing)} too")
        self._session, self._binding = session, session.io_binding()
        self._pointers: list[Pointer] = []
        self._made = [name for name in wanted_out if name not in outputs]
        try:
            for name, array in inputs.items():
                self._binding.bind_input(name, "cpu", 0, *self._keep(name, array, wanted_in))
            for name, array in outputs.items():
                _refuse_read_only(name, array)
                self._binding.bind_output(name, "cpu", 0, *self._keep(name, array, wanted_out))
            for name in self._made:
                self._binding.bind_output(name)
        except BaseException:
            self.release()
            raise

    def run(self) -> None:
        """Runs the session, which has read and written the arrays when this returns.

        Raises Invalid after `release`, and what ONNX Runtime raises.
        """
        if self._binding is None:
            raise Invalid("this binding was released: its memory may be another's by now")
        self._session.run_with_iobinding(self._binding)

    @property
    def results(self) -> dict[str, Any]:
        """The outputs that ONNX Runtime has made, as OrtValues, by name, after `run`."""
        if self._binding is None:
            raise Invalid("this binding was released, and its results with it")
        made = self._binding.get_outputs()[-len(self._made) :] if self._made else []
        return dict(zip(self._made, made, strict=True))

    def release(self) -> None:
        """Lets go of the arrays; does nothing the second time."""
        self._binding = None
        for pointer in self._pointers:
            pointer.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        """Releases it."""
        self.release()

    def _keep(
        self, name: str, array: AnyArray, nodes: Mapping[str, Any]
    ) -> tuple[Any, tuple[int, ...], int]:
        """Element type, shape and address of an array, which stays there."""
        if name not in nodes:
            raise NoSuch(f"the model has no {name!r}; it has {sorted(nodes)}")
        pointer = Pointer(array)
        self._pointers.append(pointer)
        _check(name, array, nodes[name])
        kind = _NUMBERS.get(array.dtype.name, array.dtype.type)
        return kind, array.shape, pointer.address


def _refuse_read_only(name: str, array: AnyArray) -> None:
    if not array.flags.writeable:
        raise BufferError(
            f"output {name!r} is an array that may only be read, which ONNX Runtime would write: "
            "acquire a slot for it, or take one with write=True"
        )


def _check(name: str, array: AnyArray, node: Any) -> None:
    """Raises Incompatible for another dtype, or another length of an axis that the model fixes."""
    kind = f"tensor({_NAMES.get(array.dtype.name, array.dtype.name)})"
    if kind != node.type or not array.dtype.isnative:
        raise Incompatible(f"{name!r} must be a {node.type}, found dtype {array.dtype}")
    fits = len(array.shape) == len(node.shape) and all(
        not isinstance(wanted, int) or wanted == found
        for wanted, found in zip(node.shape, array.shape, strict=True)
    )
    if not fits:
        raise Incompatible(f"{name!r} must have shape {node.shape}, found {list(array.shape)}")
