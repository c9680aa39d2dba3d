"""Tells where an array lies: two processes that name the same place look at the same bytes."""

from typing import Any, NamedTuple

import numpy.typing as npt


class Place(NamedTuple):
    """A byte of a file that can be mapped by many processes, as the kernel names it."""

    device: str
    inode: int
    offset: int


def place_of(address: int, maps: str = "/proc/self/maps") -> Place | None:
    """Finds what an address of this process belongs to; `None` for private memory."""
    with open(maps) as lines:
        for line in lines:
            span, _, offset, device, inode, *_ = line.split()
            start, end = (int(bound, 16) for bound in span.split("-"))
            if start <= address < end:
                return (
                    Place(device, int(inode), int(offset, 16) + address - start)
                    if int(inode)
                    else None
                )
    return None


class Places:
    """Places of arrays, each looked up once: a pool stays where it was mapped."""

    def __init__(self) -> None:
        self.known: dict[int, Place | None] = {}

    def of(self, array: npt.NDArray[Any]) -> Place | None:
        """Finds the place where an array begins."""
        address = array.__array_interface__["data"][0]
        if address not in self.known:
            self.known[address] = place_of(address)
        return self.known[address]
