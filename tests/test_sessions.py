"""Which processes share the memory of arrays, where that isn't simply a tree."""

import os
import subprocess
import sys
import textwrap

WATCHDOG = 60


def run(code, folder, **environment):
    """Runs a script, which must end well and quietly; returns its output."""
    file = folder / "script.py"
    file.write_text(textwrap.dedent(code))
    inherited = {k: v for k, v in os.environ.items() if k != "ROPEWAY_SESSION"}
    done = subprocess.run(
        [sys.executable, str(file)],
        env={**inherited, **environment},
        capture_output=True,
        timeout=WATCHDOG,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b""), done.stderr.decode()
    return done.stdout.decode()


def test_a_forkserver_that_was_there_before(tmp_path):
    """Its children aren't of the session: they open its arrays; theirs go with them, by name."""
    out = run(
        """
        import multiprocessing
        from multiprocessing import forkserver

        def double(array, sender):
            import ropeway as rw
            array[:] *= 2
            sender.send(rw.share(array + 1))
            sender.close()

        if __name__ == "__main__":
            forkserver.ensure_running()
            import numpy as np
            import ropeway as rw
            context = multiprocessing.get_context("forkserver")
            receiver, sender = context.Pipe(duplex=False)
            array = rw.share(np.arange(10.0))
            child = context.Process(target=double, args=(array, sender))
            child.start()
            sender.close()
            child.join()
            print(array.sum())
            try:
                receiver.recv()
            except rw.Gone as error:
                print(str(child.pid) in str(error))
        """,
        tmp_path,
    )
    assert out == "90.0\nTrue\n"


def test_a_session_whose_processes_have_ended_is_followed_by_another(tmp_path):
    stale = run("import os, ropeway; print(os.environ['ROPEWAY_SESSION'])", tmp_path).strip()
    program = """
        import os, pickle
        import ropeway as rw
        print(rw.share(b"abc").tobytes(), os.environ["ROPEWAY_SESSION"] != STALE)
    """
    program = program.replace("STALE", repr(stale))
    assert run(program, tmp_path, ROPEWAY_SESSION=stale) == "b'abc' True\n"
    assert run(program, tmp_path, ROPEWAY_SESSION="rubbish") == "b'abc' True\n"


def test_a_second_interpreter_of_a_process_is_refused_by_a_sentence(tmp_path):
    out = run(
        """
        import contextlib
        try:
            import _interpreters as interpreters
        except ImportError:
            import _xxsubinterpreters as interpreters
        import ropeway as rw
        pool = rw.Pool(1, shape=8, dtype="u1")
        code = "import warnings; warnings.simplefilter('ignore'); import ropeway"
        other = interpreters.create()
        try:
            story = interpreters.run_string(other, code)  # 3.13 returns what went wrong
        except Exception as error:
            story = error
        refusals = "subinterpreter", "more than once per process"  # ours, and NumPy's
        print(any(refusal in str(story) for refusal in refusals) or story)
        interpreters.destroy(other)
        pool.acquire().release()
        """,
        tmp_path,
    )
    assert out == "True\n"
