"""Uses everything at once for a long time, kills included, and compares the end with the beginning.

`python harness/soak.py SECONDS [SEED]`. Each lap runs every activity with sizes, stages, deaths
and forks of its own. One pool, one queue and some arrays live through all laps, and their members
change in each. After every lap this process is at rest, and what it has is measured. At the end
the last quarter of the laps must have what the second quarter had: memory within 1 %, numbers of
descriptors, maps, threads and children the same.
"""

import array
import collections
import ctypes
import gc
import multiprocessing
import os
import pickle
import random
import re
import statistics
import sys
import threading
import time
from pathlib import Path

import belongings
import numpy as np
from deeds import fork
from kill import KINDS, SLOW, warm_up
from ledger import ledger
from loading import Numbers, play_loader
from rounds import Round
from voices import Voices

import ropeway as rw

LARGEST = 2 << 20
"""Bytes of the largest message and array."""
ROUNDS = [kind for kind in KINDS if kind not in SLOW]
LEAST_LAPS = 8
WARM_LAPS = 40


class Soak:
    """What lives through all laps, and the activities of one lap."""

    def __init__(self, seed):
        """Makes what lives long."""
        self.random = random.Random(seed)
        self.pool = rw.Pool(3, stages=("fill", "change", "use"), max_slots=6)
        self.queue = rw.Queue(8)
        self.arrays = collections.deque(rw.zeros(1000) for _ in range(8))
        self.counts = collections.Counter()
        self.voices = Voices()

    def grow(self):
        """Gives everything the memory that it may come to need, and reaches a steady state."""
        slots = [self.pool.acquire() for _ in range(6)]
        for slot in slots:
            slot.add("bytes", LARGEST + 65536, "u1")
            slot.release()
        slots.clear()
        kept = []
        for _ in range(16):
            self.queue.put(np.zeros(LARGEST + 65536, "u1"))
            kept.append(self.queue.get())
        # An array gets memory that is at most twice as large, so there is to be some of every size.
        kept = [rw.empty(1 << log, "u1") for log in range(21, 12, -1) for _ in range(16)]
        # NumPy keeps up to seven freed blocks of each size below 1024 bytes.
        for size in range(1024):
            kept = [np.empty(size, "u1") for _ in range(8)]
        kept.clear()
        for _ in range(WARM_LAPS):
            self.lap()
        self.counts.clear()

    def lap(self):
        """Runs every activity once."""
        for kind in self.random.sample(ROUNDS, 3):
            self.check(Round(kind, self.random.randrange(1 << 30)).play()[0])
        for activity in (self.pass_slots, self.pass_messages, self.pass_arrays, self.load):
            activity()
            self.counts[activity.__name__] += 1
        if self.random.random() < 0.1:
            self.start_another()
        self.check(0)

    def check(self, deaths):
        """Ends the soak at the first complaint."""
        self.counts["deaths"] += deaths
        if complaints := ledger.complaints() + self.voices.heard():
            self.voices.say(complaints)
            sys.exit(1)

    def size(self):
        """A number of bytes, small ones as likely as large ones."""
        return int(8 * (LARGEST / 8) ** self.random.random())

    # ---- activities ---------------------------------------------------------------------------

    def pass_slots(self):
        """Children and threads pass slots of the long-lived pool; some children die."""
        sizes = [self.size() for _ in range(12)]
        dies = self.random.randrange(16)
        pid = fork()
        if pid == 0:
            self.fill(sizes, dies)
            os._exit(0)
        changer = threading.Thread(target=self.change)
        changer.start()
        while not os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            self.take_one(0.01)
        os.waitpid(pid, 0)
        changer.join()
        while self.pool.waiting("change") or self.take_one(0.0):
            self.change()

    def fill(self, sizes, dies):
        """In a child: fills slots, and dies with one of them."""
        for number, size in enumerate(sizes):
            with self.pool.acquire(timeout=60) as slot:
                array = slot.add("bytes", size, "u1")
                array[...] = size % 251
                del array
                if number == dies:
                    os.kill(os.getpid(), 9)
                slot.meta = size
                slot.publish()

    def change(self):
        """Changes slots until none comes for a while."""
        while True:
            try:
                slot = self.pool.take("change", write=True, timeout=0.1)
            except rw.Timeout:
                return
            with slot:
                slot["bytes"][0] = 252
                slot.publish()

    def take_one(self, timeout):
        """Takes a slot if one comes in time, and looks at every byte."""
        try:
            slot = self.pool.take(timeout=timeout)
        except rw.Timeout:
            return False
        with slot:
            size = slot.meta
            expected = np.full(size, size % 251, "u1")
            expected[0] = 252
            if not np.array_equal(slot["bytes"], expected):
                ledger.complain(f"a slot of {size} bytes is torn")
        return True

    def pass_messages(self):
        """Threads pass messages of any structure through the long-lived queue."""
        objects = [
            {"a": np.full(self.size() // 8, n), "b": [n, None, "text"], "c": (np.arange(n),)}
            for n in range(10)
        ]
        sender = threading.Thread(target=lambda: [self.queue.put(one) for one in objects])
        sender.start()
        for expected in objects:
            found = self.queue.get(timeout=60)
            if not (np.array_equal(found["a"], expected["a"]) and found["b"] == expected["b"]):
                ledger.complain("a message isn't what was sent")
        sender.join()

    def pass_arrays(self):
        """Makes arrays; children inherit them, open handles, and die with them or don't."""
        self.arrays.append(rw.share(np.full(self.size(), self.random.randrange(256), "u1")))
        self.arrays.popleft()
        handles = [pickle.dumps(array) for array in self.arrays]
        kills = self.random.random() < 0.5
        pid = fork()
        if pid == 0:
            opened = [pickle.loads(handle) for handle in handles]
            own = rw.zeros(self.size() // 8)
            good = all((array == array.flat[0]).all() for array in opened) and not own.any()
            if kills:
                os.kill(os.getpid(), 9)
            os._exit(0 if good else 1)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code != (-9 if kills else 0):
            ledger.complain(f"a child with arrays ended with {code}")

    def load(self):
        """Epochs with and without deaths, read to the end or not."""
        seed = self.random.randrange(1 << 30)
        if self.random.random() < 0.5:
            self.counts["deaths"] += play_loader(seed, ledger)
            return
        loader = rw.Loader(Numbers(100, self.size() // 800 + 1), batch_size=7, workers=2, seed=seed)
        for number, _ in enumerate(loader):
            if number == seed % 20:
                break
        loader.close()

    def start_another(self):
        """A process of another start method takes part."""
        method = self.random.choice(["spawn", "forkserver"])
        process = multiprocessing.get_context(method).Process(target=answer, args=(self.queue,))
        process.start()
        found = self.queue.get(timeout=30)
        process.join()
        process.close()
        if found.sum() != 1000:
            ledger.complain("a started process has sent something else")


def answer(q):
    """In a started process: sends an array."""
    q.put(np.ones(1000))


def measure(soak):
    """What this process has at rest."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what is free is given back, and isn't counted
    status = dict(re.findall(r"(\w+):\s+(\d+)", Path("/proc/self/status").read_text()))
    belonging = belongings.of_this_process()
    arena = rw._core.arena_snapshot()
    return {
        "own memory, kB": int(status["RssAnon"]),
        "shared memory, kB": segments() // 1024,
        "... of the pool": soak.pool.status().committed // 1024,
        "... of the queue": soak.queue.status().committed // 1024,
        "... of arrays": arena["committed"] // 1024,
        "arrays": arena["arrays"] - arena["unclaimed"],
        "descriptors": len(belonging["descriptors"]),
        "maps": len(belonging["mapped segments"]),
        "threads": len(belonging["threads"]),
        "children": len(belonging["children"]),
        "sockets and files": len(belonging["sockets"]) + len(belonging["files in /dev/shm"]),
    }


def segments():
    """Bytes of the memory files that this process has open."""
    found = {}
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{descriptor}").startswith("/memfd:"):
                status = os.stat(int(descriptor))
                found[status.st_ino] = status.st_blocks * 512
        except OSError:
            continue
    return sum(found.values())


def verdict(laps):
    """Prints the beginning and the end side by side; True when they are the same."""
    flat = True
    print(f"{'':24}{'second quarter':>16}{'last quarter':>16}{'change':>10}")
    for what, found in laps.items():
        quarter = len(found) // 4
        begin, end = found[quarter : 2 * quarter], found[-quarter:]
        was, now = statistics.median(begin), statistics.median(end)
        change = (now - was) / was if was else float(now)
        grows = change > 0.01
        flat &= not grows
        print(f"{what:24}{was:16.0f}{now:16.0f}{change:10.2%}{'   GROWS' if grows else ''}")
    return flat


def main():
    """Soaks for as long as asked, and says whether everything is flat."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 1800.0
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else time.monotonic_ns()
    warm_up()
    soak = Soak(seed)
    soak.grow()
    # Eight bytes a figure, so that what is noted isn't what grows.
    laps = {what: array.array("q") for what in measure(soak)}
    start, count = time.monotonic(), 0
    while time.monotonic() - start < seconds or count < LEAST_LAPS:
        soak.lap()
        for what, found in measure(soak).items():
            laps[what].append(found)
        count += 1
    flat = verdict(laps)
    counts = ", ".join(f"{times} {what}" for what, times in soak.counts.items())
    print(f"{count} laps in {time.monotonic() - start:.0f} s, seed {seed}: {counts}")
    sys.exit(not flat)


if __name__ == "__main__":
    main()
