"""What the processes of a round do, and what they check while they have a message in hand."""

import os
import queue
import random
import time

import deeds
import numpy as np
from ledger import EACH, ledger

import ropeway as rw

PATIENCE = 10.0


class Actor:
    """A process of a round, from the inside."""

    def __init__(self, index, seed, deed=None):
        self.index = index
        self.random = random.Random(seed * 31 + index)
        self.deed = deed
        self.leases = 0
        self.nth = self.random.randrange(1, 8)

    def take_in_hand(self, number):
        """Notes which message this process has."""
        ledger.current[self.index] = number + 1

    def linger(self, views=None):
        """Keeps the lease for a moment, in which its fate may come."""
        self.leases += 1
        if self.random.random() < 0.1:
            time.sleep(self.random.random() * 0.0005)
        if self.deed and self.leases == self.nth:
            deeds.commit(self.deed, self.index, views)

    # ---- messages -----------------------------------------------------------------------------

    def content(self, number):
        """What message `number` carries; its size is always the same."""
        size = 8 << (number * 7 % 9)
        return np.arange(number, number + size, dtype="u8") * np.uint64(0x9E3779B97F4A7C15)

    def check(self, number, array, change=0):
        """Complains about an array that isn't whole."""
        if not np.array_equal(array, self.content(number) + np.uint64(change)):
            ledger.complain(f"message {number} is torn: {array[:4]}")
        ledger.read[number] += 1

    def fill_queue(self, q, producer, messages, shared):
        """Puts messages on a queue; their arrays in the message, or shared beside it."""
        for number in range(producer * EACH, producer * EACH + messages):
            self.take_in_hand(number)
            array = self.content(number)
            if shared:
                array = rw.share(array)
            ledger.begun[number] = 1
            q.put((number, array), timeout=PATIENCE)
            ledger.published[number] = 1
            self.linger(array)
        self.take_in_hand(-1)

    def drain_queue(self, q):
        """Gets messages from a queue until all are there."""
        while True:
            try:
                number, array = q.get(timeout=0.02)
            except queue.Empty:
                if ledger.over[0]:
                    return
                continue
            self.take_in_hand(number)
            self.check(number, array)
            self.linger(array)
            del array
            ledger.done[number] += 1
            self.take_in_hand(-1)

    def fill_pool(self, pool, producer, messages):
        """Fills slots of a pool."""
        for number in range(producer * EACH, producer * EACH + messages):
            with pool.acquire(timeout=PATIENCE) as slot:
                self.take_in_hand(number)
                content = self.content(number)
                array = slot.add("n", content.shape, content.dtype)
                array[...] = content
                slot.meta = number
                self.linger(array)
                del array
                ledger.begun[number] = 1
                slot.publish()
            ledger.published[number] = 1
        self.take_in_hand(-1)

    def change_pool(self, pool):
        """Changes slots in place, in the middle, until the pool is drained."""
        while True:
            try:
                slot = pool.take(timeout=PATIENCE, stage="change")
            except rw.Closed:
                return
            with slot:
                self.take_in_hand(slot.meta)
                array = slot["n"]
                array += np.uint64(1)
                self.linger(array)
                del array
                slot.publish()
            self.take_in_hand(-1)

    def drain_pool(self, pool):
        """Takes slots until the pool is closed and drained."""
        change = len(pool.stages) - 2
        while True:
            try:
                slot = pool.take(timeout=PATIENCE)
            except rw.Closed:
                return
            number = slot.meta
            self.take_in_hand(number)
            array = slot["n"]
            self.check(number, array, change)
            self.linger((slot, array))
            del array
            slot.release()
            ledger.done[number] += 1
            self.take_in_hand(-1)


def stand_in_once(take, rest, change):
    """Takes one slot, if there is one, and does with it what its takers do."""
    try:
        slot = take()
    except (rw.Timeout, rw.Closed):
        return
    with slot:
        number = slot.meta
        if change == "change":
            slot["n"][...] += np.uint64(1)
            slot.publish()
        else:
            rest.check(number, slot["n"], change)
            slot.release()
            ledger.done[number] += 1


def run(actor, function, *args):
    """In a child: plays a role to its end and exits by itself; a thread that dies goes on."""
    function = function.__get__(actor)
    while True:
        try:
            function(*args)
        except deeds.Unwound as end:
            end.__traceback__ = None
            actor.deed = None
            if function.__name__.startswith("fill"):
                break  # what it had begun is begun again by nobody
            continue
        break
    ledger.current[actor.index] = 0
    os._exit(0)
