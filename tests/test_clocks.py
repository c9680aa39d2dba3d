"""Waits under a wall clock that jumps a year forth and back, again and again."""

import os
import shutil
import subprocess
import sys

import pytest

SHIM = r"""
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* A year ahead in every second stretch of 50 ms. */
static long ahead(void) {
    struct timespec t;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &t);
    return t.tv_nsec / 50000000 % 2 ? 31536000 : 0;
}
int clock_gettime(clockid_t clock, struct timespec *t) {
    int done = syscall(SYS_clock_gettime, clock, t);
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI)
        t->tv_sec += ahead();
    return done;
}
int gettimeofday(struct timeval *restrict t, void *restrict zone) {
    struct timespec now;
    int done = clock_gettime(CLOCK_REALTIME, &now);
    t->tv_sec = now.tv_sec, t->tv_usec = now.tv_nsec / 1000;
    return done;
}
time_t time(time_t *t) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return t ? (*t = now.tv_sec) : now.tv_sec;
}
"""

PROGRAM = """
import os, queue, signal, sys, threading, time
import ropeway as rw

years = {int(time.time()) // 10_000_000 for _ in range(50) if time.sleep(0.005) is None}
assert len(years) > 1, "the wall clock doesn't jump"


def times_out(error, wait):
    begin = time.monotonic()
    try:
        wait(0.3)
    except error:
        assert time.monotonic() - begin >= 0.3, "too early"
    else:
        raise AssertionError("there was something to wait for")


def ends(wait, then):
    threading.Timer(0.3, then).start()
    begin = time.monotonic()
    found = wait(20)
    assert 0.3 <= time.monotonic() - begin < 20, "too early or too late"
    return found


class Slow:
    def __len__(self):
        return 8

    def __getitem__(self, key):
        time.sleep(20 if key == 7 else 0)
        return key


if __name__ == "__main__":
    q = rw.Queue(maxsize=1)
    times_out(queue.Empty, lambda seconds: q.get(timeout=seconds))
    assert ends(lambda seconds: q.get(timeout=seconds), lambda: q.put(1)) == 1
    q.put(2)
    times_out(queue.Full, lambda seconds: q.put(3, timeout=seconds))
    ends(lambda seconds: q.put(3, timeout=seconds), q.get)

    pool = rw.Pool(slots=1, shape=(4,), dtype="int32")
    times_out(rw.Timeout, lambda seconds: pool.take(timeout=seconds))
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        slot = pool.acquire()
        os.write(writer, b"held")
        signal.pause()
    assert os.read(reader, 4) == b"held"
    times_out(rw.Timeout, lambda seconds: pool.acquire(timeout=seconds))
    held = [slot.held_s for slot in pool.status().slots if slot.pid == child]
    assert len(held) == 1 and 0 <= held[0] < 60, held
    ends(lambda seconds: pool.acquire(timeout=seconds), lambda: os.kill(child, signal.SIGKILL))
    os.waitpid(child, 0)

    loader = rw.Loader(Slow(), batch_size=4, workers=1, timeout=0.3)
    batches = iter(loader)
    assert next(batches).tolist() == [0, 1, 2, 3]
    times_out(rw.Timeout, lambda _: next(batches))
    loader.close()
    print("done")
"""


@pytest.fixture(scope="module")
def jumping(tmp_path_factory):
    """The environment of a program whose wall clock jumps."""
    compiler = shutil.which("cc") or pytest.skip("there is no C compiler")
    folder = tmp_path_factory.mktemp("clock")
    source, library = folder / "clock.c", folder / "clock.so"
    source.write_text(SHIM)
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", library, source]
    subprocess.run(command, check=True, timeout=60)
    environment = {name: text for name, text in os.environ.items() if name != "ROPEWAY_SESSION"}
    return {**environment, "LD_PRELOAD": str(library)}


def test_waits_rest_on_a_clock_that_never_jumps(jumping, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program)]
    done = subprocess.run(command, env=jumping, capture_output=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"done\n", b""), done.stderr.decode()
