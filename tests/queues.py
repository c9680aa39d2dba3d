"""Queues as the tests use them."""

import gc

import ropeway as rw

WATCHDOG = 60


def through(q, obj):
    q.put(obj)
    return q.get(timeout=WATCHDOG)


def slots_in_use(q):
    gc.collect()
    return [s for s in q.status().slots if s.state == "held-write" or s.stage == "use"]


def arrays_alive():
    return rw.status().arrays
