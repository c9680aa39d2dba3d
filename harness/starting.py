"""Rounds with a worker that `multiprocessing` starts."""

import multiprocessing
import queue
import random
import time

import numpy as np
from actors import PATIENCE
from ledger import ledger

import ropeway as rw


def play_started(kind, seed):
    """A round with a worker that `multiprocessing` starts; it is killed while it works."""
    ledger.clear()
    method = kind.partition("method ")[2].partition(":")[0]
    q = rw.Queue(4)
    process = multiprocessing.get_context(method).Process(target=send_for_ever, args=(q,))
    process.start()
    chance = random.Random(seed)
    expected = 0
    for _ in range(chance.randrange(1, 100)):
        number, array = q.get(timeout=PATIENCE)
        expected = check_next(expected, number, array)
    process.kill()
    died = time.monotonic()
    process.join()
    while True:
        try:
            number, array = q.get(timeout=0.12)
        except queue.Empty:
            break
        expected = check_next(expected, number, array)
    q.qsize()
    took = time.monotonic() - died
    status = q.status()
    del array
    if any(slot.state != "idle" or slot.stage == "use" for slot in q.status().slots):
        ledger.complain(f"slots aren't free: {status}")
    q.close()
    process.close()
    return 1, [took] if took < 0.1 else [], len(status.lost)


def check_next(expected, number, array):
    """Complains unless the message is the next and whole."""
    if number != expected or not (array == number).all():
        ledger.complain(f"message {expected} expected, {number} found: {array[:4]}")
    return number + 1


def send_for_ever(q):
    """Puts numbered messages on a queue."""
    number = 0
    while True:
        q.put((number, np.full(number * 37 % 4000 + 1, number)))
        number += 1
