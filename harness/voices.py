"""What processes print to standard error, which should be nothing."""

import os
import sys
import tempfile


class Voices:
    """Catches the standard error of this process and of all that it starts from now on."""

    def __init__(self):
        """Puts a file in its place; `say` still reaches the terminal."""
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 (as long as the process)
        self._out = os.fdopen(os.dup(2), "w")
        self._read = 0
        os.set_inheritable(self._out.fileno(), False)
        sys.stderr.flush()
        os.dup2(self._file.fileno(), 2)

    def heard(self):
        """What was printed since the last call."""
        size = os.fstat(self._file.fileno()).st_size
        text = os.pread(self._file.fileno(), size - self._read, self._read)
        self._read = size
        return text.decode(errors="replace")

    def say(self, text):
        """Prints to the standard error that there was before."""
        print(text, file=self._out, flush=True)
