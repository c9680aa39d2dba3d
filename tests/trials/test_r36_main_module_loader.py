"""R36, notebook, `__main__`, spawn and forkserver, with the loader.

computational-cell-analytics/dl-for-micro#20; also open-mmlab/mmdetection#410,
facebookresearch/spdl#1565, CroatianMeteorNetwork/RMS#938.
"""

import importlib.util

import pytest

CLOUDPICKLE = importlib.util.find_spec("cloudpickle") is not None

FED = """
import subprocess
import sys

PROGRAM = {text!r}
done = subprocess.run(
    [sys.executable, "-", *sys.argv[1:]], input=PROGRAM.encode(), capture_output=True, timeout=60
)
sys.stdout.write(done.stdout.decode())
sys.stderr.write(done.stderr.decode())
sys.exit(done.returncode)
"""

INTERACTIVE = """
import sys

import numpy as np

import ropeway as rw

METHOD = None if sys.argv[1] == "default" else sys.argv[1]
if sys.argv[2:]:
    sys.modules["cloudpickle"] = None  # as if it weren't installed


class Squares:
    def __len__(self):
        return 20

    def __getitem__(self, index):
        return index * index


def collate(samples):
    return np.array(samples)


def run():
    with rw.Loader(Squares(), 4, 2, collate=collate, start_method=METHOD) as loader:
        return [n for batch in loader for n in batch.tolist()]


try:
    assert run() == [n * n for n in range(20)]
    print("works")
except TypeError as error:
    assert "Squares" in str(error) and "cloudpickle" in str(error), error
    assert (f"by {METHOD!r}" if METHOD else "by default") in str(error)
    print("refused")
"""


@pytest.fixture
def feed(room):
    """Runs a program that comes through standard input."""
    return lambda text, *arguments: room.run(FED.format(text=text), *arguments)


def test_a_main_module_without_a_file_works(feed, loader_method):
    said = feed(INTERACTIVE, loader_method)
    assert said == ("works\n" if CLOUDPICKLE or loader_method == "fork" else "refused\n")


def test_without_cloudpickle_it_is_refused_with_a_remedy(feed, loader_method):
    said = feed(INTERACTIVE, loader_method, "without")
    assert said == ("works\n" if loader_method == "fork" else "refused\n")


PACKAGED = """
import pathlib
import subprocess
import sys
import zipfile

PROGRAM = {text!r}
here, way = pathlib.Path(__file__).parent, sys.argv[1]
(here / "pack").mkdir()
(here / "pack" / "__init__.py").touch()
(here / "pack" / "__main__.py").write_text(PROGRAM)
with zipfile.ZipFile(here / "pack.pyz", "w") as archive:
    archive.writestr("__main__.py", PROGRAM)
command = [sys.executable, *way.split(), *sys.argv[2:]]
done = subprocess.run(command, cwd=here, capture_output=True, timeout=60)
sys.stdout.write(done.stdout.decode())
sys.stderr.write(done.stderr.decode())
sys.exit(done.returncode)
"""


@pytest.mark.parametrize("way", ["-m pack", "pack", "pack.pyz"])
@pytest.mark.parametrize("without", [[], ["without"]])
def test_a_packaged_main_module_is_as_one_without_a_file(room, way, without, loader_method):
    """A sibling: multiprocessing's spawn looks into no `__main__.py`."""
    said = room.run(PACKAGED.format(text=INTERACTIVE), way, loader_method, *without)
    works = loader_method == "fork" or (CLOUDPICKLE and not without)
    assert said == ("works\n" if works else "refused\n")


UNGUARDED = """
import os
import sys

import ropeway as rw

with open(os.path.join(os.path.dirname(__file__), "started"), "a") as file:
    file.write(f"{os.getpid()}\\n")

METHOD = None if sys.argv[1] == "default" else sys.argv[1]


class Squares:
    def __len__(self):
        return 20

    def __getitem__(self, index):
        return index * index


list(rw.Loader(Squares(), 4, 2, start_method=METHOD))
"""


@pytest.mark.parametrize("method", ["default", "spawn", "forkserver"])
def test_a_script_without_a_guard_fails_and_starts_no_flood(room, tmp_path, method):
    program = room.start(UNGUARDED, method)
    assert program.wait(10) == 1
    assert "__main__" in program.errors()
    assert len((tmp_path / "started").read_text().split()) <= 2 + 2


LARGE = """
import pickle
import sys

import numpy as np

import ropeway as rw

METHOD = None if sys.argv[1] == "default" else sys.argv[1]


class Data:
    def __init__(self):
        self.array = rw.zeros((64, 1 << 20), "u1")
        self.array[:] = np.arange(64, dtype="u1")[:, None]

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return self.array[index, :100]


if __name__ == "__main__":
    with rw.Loader(Data(), 8, 4, start_method=METHOD) as loader:
        for number, batch in enumerate(loader):
            assert (batch == 8 * number + np.arange(8)[:, None]).all()
        task = loader._engine._task
        assert METHOD == "fork" or len(pickle.dumps(task)) < 64 << 10
        assert METHOD == "fork" or task.payload.data.nbytes < 64 << 10
"""


def test_a_large_array_goes_to_workers_as_a_handle(room, loader_method):
    room.run(LARGE, loader_method)
