import os
import signal
import time

import pytest

import ropeway as rw

WATCHDOG = 60


def die(pool):
    slot = pool.take("work", write=True, timeout=WATCHDOG)
    slot["x"][:] = 99
    os.kill(os.getpid(), signal.SIGKILL)


def test_the_work_of_a_repeatable_stage_goes_back_with_what_it_began_from(child):
    pool = rw.Pool(
        1, fields={"x": ((16,), "i4")}, stages=("plan", "work", "use"), repeatable=("work",)
    )
    with pool.acquire() as slot:
        slot.meta = {"plan": 7}
        slot.publish()
    with child(die, pool, exitcode=-signal.SIGKILL):
        pass
    end = time.monotonic() + WATCHDOG
    while not pool.waiting("work") and time.monotonic() < end:
        time.sleep(0.01)
    with pool.take("work", write=True, timeout=WATCHDOG) as slot:
        assert (slot.meta, slot.deliveries) == ({"plan": 7}, 1)
        slot.publish()
    with pool.take(timeout=WATCHDOG) as slot:
        assert slot.meta == {"plan": 7}


def test_only_middle_stages_are_repeatable():
    for stages in (("fill",), ("use",), ("nowhere",), "work"):
        with pytest.raises(ValueError, match="repeatable"):
            rw.Pool(1, 4, "u1", stages=("fill", "work", "use"), repeatable=stages)
    with pytest.raises(ValueError, match="redeliveries"):
        rw.Pool(1, 4, "u1", redeliveries=-1)
