"""One round: forks all its processes, lets their fates come, compares what came out."""

import collections
import os
import queue
import random
import signal
import time

from actors import PATIENCE, Actor, run, stand_in_once
from deeds import fork
from ledger import EACH, GONE, RUNNING, ledger

import ropeway as rw


class Round:
    """One round with a pool or a queue."""

    def __init__(self, kind, seed):
        self.kind, self.seed = kind, seed
        self.random = random.Random(seed)
        self.messages = self.random.randrange(5, EACH)
        self.people = {}
        self.roles = []
        self.recoveries = []
        arena = rw._core.arena_snapshot()
        self.arrays = arena["arrays"] - arena["unclaimed"]
        ledger.clear()

    def start(self, role, function, *args, fate=None, deed=None):
        """Forks a process; only the child doesn't come back, but raises SystemExit or ends."""
        index = len(self.roles)
        self.roles.append(role)
        ledger.state[index] = RUNNING
        pid = fork()
        if pid == 0:
            actor = Actor(index, self.seed, deed)
            run(actor, function, *args)
        self.people[pid] = (index, fate)
        ledger.pid[index] = pid

    def play(self):
        """Plays the round to its end; returns (ended, recoveries, lost)."""
        is_pool = self.kind.startswith("pool")
        thing = self.make_pool() if is_pool else rw.Queue(self.random.choice([0, 3]))
        self.start_all(thing, is_pool)
        self.see_through(thing, ("producer",))
        ledger.over[0] = 1
        if is_pool:
            thing.close()
        self.see_through(thing, ("producer", "relay", "consumer"))
        rest = Actor(len(self.roles), self.seed)
        if is_pool:
            if len(thing.stages) == 3:
                rest.change_pool(thing)
            rest.drain_pool(thing)
        else:
            rest.drain_queue(thing)
        lost = self.judge(thing.status())
        thing.close()
        gone = [index for index in range(len(self.roles)) if ledger.state[index] == GONE]
        return len(gone), self.recoveries, lost

    def make_pool(self):
        """A pool of arenas, with a stage in the middle or without."""
        middle = "middle" in self.kind or self.random.random() < 0.4
        stages = ("fill", "change", "use") if middle else ("fill", "use")
        slots = self.random.randrange(1, 4)
        return rw.Pool(slots, stages=stages, max_slots=slots + self.random.randrange(3))

    def start_all(self, thing, is_pool):
        """Starts everybody; one of those whom the kind names meets its fate."""
        victim = self.victim()
        middle = is_pool and len(thing.stages) == 3
        roles = ["producer"] * self.random.randrange(1, 4) + ["consumer"] * 2
        roles += ["relay"] if middle else []
        if victim == "anybody":
            victim = self.random.choice(["producer", "relay", "consumer"] if middle else roles[:1])
        for number, role in enumerate(roles):
            fate, deed = None, None
            if role == victim:
                fate, deed, victim = *self.fate(), None
            if role == "producer":
                function = Actor.fill_pool if is_pool else Actor.fill_queue
                args = (number, self.messages, *(() if is_pool else ("arrays" in self.kind,)))
            elif role == "relay":
                function, args = Actor.change_pool, ()
            else:
                function, args = (Actor.drain_pool if is_pool else Actor.drain_queue), ()
            self.start(role, function, thing, *args, fate=fate, deed=deed)

    def victim(self):
        """The role that meets a fate."""
        words = {"middle": "relay", "consumer": "consumer", "receiver": "consumer"}
        words |= {"producer": "producer", "sender": "producer", "live views": "consumer"}
        return next((role for word, role in words.items() if word in self.kind), "anybody")

    def fate(self):
        """When the victim gets which signals; and what it does to itself."""
        moment = self.random.random() * 0.02
        if "SIGKILL" in self.kind:
            return [(moment, signal.SIGKILL)], None
        if "SIGSTOP" in self.kind:
            return [(moment, signal.SIGSTOP), (moment * 2, signal.SIGCONT)], None
        deed = self.kind.partition(": ")[2].partition(" with")[0]
        return None, deed

    def see_through(self, thing, roles):
        """Lets fates come until all of these roles have left and hold nothing."""
        start = time.monotonic()
        ending = start + PATIENCE
        while True:
            self.send_signals(time.monotonic() - start)
            self.reap()
            settled = self.settle(thing)
            left = all(role not in roles for role in self.living())
            if left and settled:
                return
            if time.monotonic() > ending:
                ledger.complain(f"not settled: {list(self.living())}, {thing.status()}")
                self.end_all()
                return
            self.stand_in(thing)
            time.sleep(0.0002)

    def living(self):
        """Roles of those who haven't been reaped yet."""
        return [self.roles[index] for index, _ in self.people.values()]

    def send_signals(self, passed):
        """Sends the signals whose time has come."""
        for pid, (index, fate) in self.people.items():
            if fate and fate[0][0] <= passed:
                _, number = fate.pop(0)
                os.kill(pid, number)
                if number == signal.SIGKILL:
                    ledger.leave(index)

    def reap(self):
        """Notes whoever has ended."""
        for pid in list(self.people):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                index, fate = self.people.pop(pid)
                code = os.waitstatus_to_exitcode(status)
                fated = code == -signal.SIGKILL and fate == []
                if code and not fated:
                    ledger.complain(f"{self.roles[index]} {pid} ended with {code}")
                if code or ledger.exits[index]:
                    ledger.leave(index)

    def settle(self, thing):
        """True when those who are gone hold nothing; notes how long that took."""
        settled = True
        for index, gone_at in enumerate(ledger.gone_at):
            if not gone_at or ledger.returned[index]:
                continue
            if isinstance(thing, rw.Pool):
                thing.waiting("use")
            else:
                thing.qsize()
            status = thing.status()
            pid = int(ledger.pid[index])
            if any(one.pid == pid for one in (*status.slots, *status.members)):
                settled = False
            else:
                ledger.returned[index] = 1
                self.recoveries.append(time.monotonic() - gone_at)
        return settled

    def stand_in(self, thing):
        """Takes the place of consumers and middle stages when all of a kind are gone."""
        living = set(self.living())
        rest = Actor(len(self.roles), self.seed)
        if isinstance(thing, rw.Pool):
            if len(thing.stages) == 3 and "relay" not in living:
                stand_in_once(lambda: thing.take(timeout=0, stage="change"), rest, "change")
            if "consumer" not in living:
                stand_in_once(lambda: thing.take(timeout=0), rest, len(thing.stages) - 2)
        elif "consumer" not in living:
            try:
                number, array = thing.get_nowait()
            except queue.Empty:
                return
            rest.check(number, array)
            ledger.done[number] += 1

    def end_all(self):
        """Kills those who are left."""
        for pid in self.people:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self.people.clear()

    # ---- the verdict --------------------------------------------------------------------------

    def judge(self, status):
        """Compares what came out with what went in; returns the losses that are reported."""
        gone = [k for k in range(len(self.roles)) if ledger.state[k] == GONE]
        hands = collections.Counter(
            int(ledger.current[k]) for k in gone if self.roles[k] == "consumer"
        )
        missing = 0
        for number in range(3 * EACH):
            read, done = int(ledger.read[number]), int(ledger.done[number])
            died = hands[number + 1]
            if done > 1 or read > done + died:
                ledger.complain(f"message {number}: {read} reads, {done} released, {died} died")
            missing += bool(ledger.published[number] and not read)
        holders = sum(self.roles[k] != "producer" for k in gone) + ("thread" in self.kind)
        lost = len(status.lost)
        # A message without arrays of its own is taken when `get` returns.
        unseen = missing and not lost and "arrays" not in self.kind
        if missing > holders or unseen or lost > holders:
            ledger.complain(
                f"{missing} are missing, {lost} reported lost, {holders} died: {status}"
            )
        pids = {int(ledger.pid[k]) for k in gone}
        for loss in status.lost:
            if loss.pid not in pids and "thread" not in self.kind:
                ledger.complain(f"{loss} names one who isn't dead ({pids})")
        arena = rw._core.arena_snapshot()
        if arena["arrays"] - arena["unclaimed"] > self.arrays:
            ledger.complain(f"arrays are left: {arena}")
        first = status.slots[0].stage if status.slots else ""
        for slot in status.slots:
            if slot.state not in ("absent", "idle") or slot.stage != first:
                ledger.complain(f"not free at the end: {slot}")
        return lost
