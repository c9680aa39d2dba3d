"""Tells where an array lies: two processes that name the same place look at the same bytes."""

import os
from typing import Any, NamedTuple

import numpy.typing as npt


class Place(NamedTuple):
    """A byte of a file that can be mapped by many processes, as the kernel names it."""

    device: int
    inode: int
    offset: int


class Mapping(NamedTuple):
    """Addresses of this process, and what lies there."""

    start: int
    end: int
    place: Place | None  # of its first byte; `None` for private memory

    def place_of(self, address: int) -> Place | None:
        """Finds the place of an address in this mapping."""
        here = self.place
        return here and here._replace(offset=here.offset + address - self.start)


def mapping_of(address: int, maps: str = "/proc/self/maps") -> Mapping:
    """Finds the mapping that an address of this process belongs to."""
    with open(maps) as lines:
        for line in lines:
            span, _, offset, device, inode, *_ = line.split()
            start, end = (int(bound, 16) for bound in span.split("-"))
            if start <= address < end:
                major, minor = (int(part, 16) for part in device.split(":"))
                file = Place(os.makedev(major, minor), int(inode), int(offset, 16))
                return Mapping(start, end, file if file.inode else None)
    raise ValueError(f"nothing is mapped at {address:#x}")


class Places:
    """Places of arrays; each mapping of a file is looked up once, as ropeway's stay."""

    def __init__(self) -> None:
        self.known: list[Mapping] = []

    def of(self, array: npt.NDArray[Any]) -> Place | None:
        """Finds the place where an array begins."""
        address = array.__array_interface__["data"][0]
        for mapping in self.known:
            if mapping.start <= address < mapping.end:
                return mapping.place_of(address)
        mapping = mapping_of(address)
        if mapping.place:
            self.known.append(mapping)
        return mapping.place_of(address)
