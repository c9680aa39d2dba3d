"""What the processes of a round write down, apart from what is on trial, in shared memory."""

import mmap
import os
import time

import numpy as np

EACH = 40
"""The most messages of one producer."""

PEOPLE = 16
TEXT = 1 << 16

RUNNING, GONE = 1, 3


class Ledger:
    """Numbers that each have one writer at a time, and complaints."""

    def __init__(self, messages):
        """Makes the ledger of this process and of those that it will fork."""
        self._memory = mmap.mmap(-1, 1 << 20)
        self._text = mmap.mmap(-1, TEXT)
        self._used = 0
        self.begun, self.published, self.read, self.done = (
            self._array(messages, "u4") for _ in range(4)
        )
        self.over = self._array(1, "u4")
        self.current, self.state, self.pid, self.exits, self.returned = (
            self._array(PEOPLE, "u4") for _ in range(5)
        )
        self.gone_at = self._array(PEOPLE, "f8")
        self._said = self._array(1, "u8")

    def _array(self, count, dtype):
        array = np.frombuffer(self._memory, dtype, count, self._used)
        self._used += -(-array.nbytes // 64) * 64
        return array

    def clear(self):
        """Forgets a round. Nobody else may be alive."""
        self._memory[: self._used] = bytes(self._used)

    def leave(self, index):
        """Notes that a process is gone, or about to be."""
        if self.state[index] == RUNNING:
            self.state[index] = GONE
            self.gone_at[index] = time.monotonic()

    def complain(self, what):
        """Writes down what is wrong."""
        line = f"process {os.getpid()}: {what}\n".encode()
        start = int(self._said[0])
        line = line[: max(0, TEXT - start)]
        self._text[start : start + len(line)] = line
        self._said[0] = start + len(line)

    def complaints(self):
        """All that was wrong."""
        return self._text[: int(self._said[0])].decode(errors="replace")


ledger = Ledger(3 * EACH)
