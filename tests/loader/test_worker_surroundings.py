"""What workers find around them, and the process that forks them."""

import gc
import os
import sys

import pytest
from datasets import Made, Numbers

from ropeway.loader.zygote import Zygote


def test_workers_find_what_is_around_the_program_now(loader, tmp_path, monkeypatch):
    monkeypatch.setenv("ROPEWAY_BEFORE", "then")
    held = loader(Numbers(4), 4, 1)  # the zygote runs from here on
    next(iter(held))
    monkeypatch.delenv("ROPEWAY_BEFORE")
    monkeypatch.setenv("ROPEWAY_TEST", "now")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["a", "b"])
    before = os.umask(0o027)
    try:
        (batch,) = loader(Made(1, around), None, 1)
    finally:
        os.umask(before)
    assert batch == {
        "folder": str(tmp_path),
        "variables": (None, "now", None),
        "arguments": ["a", "b"],
        "umask": 0o027,
    }


def around(_):
    names = "ROPEWAY_BEFORE", "ROPEWAY_TEST", "PYTHONHASHSEED"
    umask = os.umask(0)
    return {
        "folder": os.getcwd(),
        "variables": tuple(map(os.environ.get, names)),
        "arguments": sys.argv,
        "umask": umask,
    }


def test_workers_have_a_large_environment_too(loader, monkeypatch):
    for number in range(4):
        monkeypatch.setenv(f"LARGE_{number}", "x" * 100_000)  # together more than a socket takes
    batches = loader(Made(4, length_of_large), 1, 2)
    assert [batch.tolist() for batch in batches] == [[100_000]] * 4


def length_of_large(index):
    return len(os.environ[f"LARGE_{index}"])


def test_what_the_main_module_raises_is_told_however_long_it_is(tmp_path):
    file = tmp_path / "long.py"
    file.write_text("raise ValueError('x' * 1_000_000)")
    with pytest.raises(RuntimeError, match="x" * 1000):
        Zygote.get().prepare((), {"init_main_from_path": str(file)})


def test_the_process_that_forks_workers_has_one_thread(loader):
    batches = loader(Numbers(8), 4, 2)
    list(batches)
    (pid,) = {hand._zygote._process.pid for hand in batches._engine.crew._hands.values()}
    assert len(os.listdir(f"/proc/{pid}/task")) == 1


def test_no_socket_is_left_where_a_zygote_can_t_start(monkeypatch, recwarn):
    monkeypatch.setattr("sys.executable", "/nonexistent")
    with pytest.raises(FileNotFoundError):
        Zygote()
    gc.collect()
    assert not recwarn.list
