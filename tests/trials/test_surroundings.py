"""Odd surroundings: what a program finds or does around ropeway must not matter to it.

Daemons close what they inherit (python/cpython#82300's thread, mlcommons/storage#528), shells pass
on what is long gone, and services start programs without standard streams.
"""

import pytest

DAEMON = """
import os
import pickle
import sys

import numpy as np

import ropeway as rw

before, kept = rw.zeros(5), rw.Queue()
handle = pickle.dumps(before)
out = os.dup2(1, 200)
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    os.closerange(0, 200)
    os.chdir("/")
    before[0] = 1
    pickle.loads(handle)[1] = 2
    made = rw.share(np.arange(3.0))
    again = pickle.loads(pickle.dumps(made[::-1]))
    again[0] = 7
    queue = rw.Queue()
    queue.put([made, np.ones(4)])
    if os.fork() == 0:
        shared, plain = queue.get(timeout=10)
        shared[1] = plain.sum()
        os._exit(0)
    status = os.wait()[1]
    os.write(200, f"{before.tolist()} {made.tolist()} {status}\\n".encode())
    os._exit(0)
os.wait()
sys.stdin.readline()
print(before.tolist())
"""


def test_a_daemon_that_has_closed_everything_makes_arrays(room):
    program = room.start(DAEMON)
    assert program.hear() == "[1.0, 2.0, 0.0, 0.0, 0.0] [0.0, 4.0, 7.0] 0"
    program.tell("")
    assert program.hear() == "[1.0, 2.0, 0.0, 0.0, 0.0]"
    program.check_end()


SESSION = """
import os
import pickle
import subprocess
import sys

if sys.argv[1] == "dead":
    program = "import os, ropeway; print(os.environ['ROPEWAY_SESSION'])"
    os.environ["ROPEWAY_SESSION"] = subprocess.check_output(
        [sys.executable, "-c", program], text=True
    ).strip()
else:
    os.environ["ROPEWAY_SESSION"] = sys.argv[1]
import ropeway as rw

array = rw.zeros(3)
pickle.loads(pickle.dumps(array))[1] = 5
assert array.tolist() == [0, 5, 0]
"""


@pytest.mark.parametrize("session", ["", "rubbish", "00", "dead"])
def test_a_session_in_the_environment_that_is_gone_does_not_matter(room, session):
    room.run(SESSION, session)


STREAMS = """
import os
import subprocess
import sys

PROGRAM = '''
import sys

import numpy as np

import ropeway as rw

queue = rw.Queue()
queue.put(np.ones(3))
open(sys.argv[1], "w").write(f"{queue.get().sum()} {rw.zeros(2).sum()}")
'''
for closed in ("<&-", "<&- >&-", "<&- >&- 2>&-"):
    script = f'exec "$@" {closed}'
    command = [sys.executable, "-c", PROGRAM, sys.argv[1]]
    subprocess.run(["sh", "-c", script, "sh", *command], check=True)
    print(open(sys.argv[1]).read())
"""


def test_a_program_needs_no_standard_streams(room, tmp_path):
    assert room.run(STREAMS, tmp_path / "out").splitlines() == ["3.0 0.0"] * 3
