"""Where a worker's batch is made: memory of the slot at hand, given out as torch storages."""

import weakref
from typing import Any

import torch

_MOST_FIELDS = 64


class Berth:
    """The slot that a worker fills; without a lease there is none."""

    def __init__(self) -> None:
        self._lease: Any = None
        self._storages: dict[int, tuple[int, Any]] = {}

    def begin(self, lease: Any) -> None:
        """Says which slot is filled from now on."""
        self._lease = lease
        self._storages = {}

    def end(self) -> None:
        """Says that none is."""
        self._lease = None

    def field(self, name: str, nbytes: int) -> Any:
        """Memory of the slot under that name. Raises `OutOfMemory` if there is none."""
        self._lease.add_field(name, "|u1", 1, (nbytes,))
        return self._lease.export(name)[0]

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype, nbytes: int) -> Any:
        """An empty tensor in the slot; None where it has to lie elsewhere."""
        if self._lease is None or not nbytes or len(self._storages) >= _MOST_FIELDS:
            return None
        number = len(self._storages)
        flat = torch.frombuffer(self.field(str(number), nbytes), dtype=torch.uint8)
        storage = flat.untyped_storage()
        self._storages[storage.data_ptr()] = number, weakref.ref(storage)
        return torch.empty(0, dtype=dtype).set_(storage, 0, shape)

    def field_of(self, storage: Any) -> int | None:
        """The number of the field that is this storage, if it is one."""
        found = self._storages.get(storage.data_ptr())
        return None if found is None else found[0]

    def move_out(self) -> None:
        """Moves what somebody still holds to memory of its own; it looks the same there."""
        for _, reference in self._storages.values():
            storage = reference()
            if storage is not None:
                storage.share_memory_()
