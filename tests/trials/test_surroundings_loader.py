"""Odd surroundings, with the loader: ignored children, a folder that is gone, no standard streams.

A service may start a program with SIGCHLD ignored, so that the kernel tells nobody how a child
ended, and a program may outlive the folder that it was started in.
"""

DATA = """
import os
import pathlib
import signal
import sys

import numpy as np

import ropeway as rw


class Data:
    def __init__(self, note):
        self.note = note

    def __len__(self):
        return 40

    def __getitem__(self, index):
        if index == 17 and self.note is not None and not self.note.exists():
            self.note.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return np.full(3, index)


def read(note=None):
    method = None if sys.argv[1] == "default" else sys.argv[1]
    with rw.Loader(Data(note), 4, 2, start_method=method) as loader:
        epochs = 0
        while epochs < 2 or (note and not loader.stats().endings):  # looked for now and then
            assert [int(x) for batch in loader for x in batch[:, 0]] == list(range(40))
            epochs += 1
        return [ending.how for ending in loader.stats().endings]
"""

IGNORED = (
    DATA
    + """
if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    (how,) = read(pathlib.Path(sys.argv[2]))
    assert "SIGKILL" in how or how == "has ended in an unknown way", how
    read()
"""
)


def test_workers_are_replaced_where_children_are_ignored(room, loader_method, tmp_path):
    room.run(IGNORED, loader_method, tmp_path / "died")


FOLDER = (
    DATA
    + """
if __name__ == "__main__":
    os.chdir(sys.argv[2])
    os.rmdir(sys.argv[2])
    read()
"""
)


def test_the_folder_of_a_program_may_be_gone(room, tmp_path):
    """By default: multiprocessing's own spawn and forkserver look for the folder."""
    (tmp_path / "folder").mkdir()
    room.run(FOLDER, "default", tmp_path / "folder")


STREAMS = (
    DATA
    + """
import subprocess

if __name__ == "__main__" and len(sys.argv) > 2:
    pathlib.Path(sys.argv[2]).write_text(str(read()))
elif __name__ == "__main__":
    out = __file__ + ".out"
    for closed in ("<&-", "<&- >&- 2>&-"):
        script = f'exec "$@" {closed}'
        subprocess.run(
            ["sh", "-c", script, "sh", sys.executable, __file__, sys.argv[1], out], check=True
        )
        print(pathlib.Path(out).read_text())
"""
)


def test_a_loader_needs_no_standard_streams(room, loader_method):
    assert room.run(STREAMS, loader_method).splitlines() == ["[]", "[]"]
