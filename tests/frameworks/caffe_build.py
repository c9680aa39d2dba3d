"""Builds Caffe for Python from the sources that a package on PyPI carries, with Debian's libraries.

The package's own build wants conda; all that is taken from it are Caffe's C++ sources and two of
its Python files. The result, a folder with the package `caffe`, is kept for the next time.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PACKAGE = "brocolli-caffe==9.0.2"
SHA256 = "c6410cc60bdd6db685d441b66be7df05410f8850ac88d6b75d48ef9b2315c08a"

# What is needed of Debian, and of Caffe for a network that is fed from memory.
_DEBIAN = """
    g++ protobuf-compiler libprotobuf-dev libboost-python-dev libboost-system-dev
    libboost-thread-dev libboost-filesystem-dev libboost-regex-dev libgflags-dev
    libgoogle-glog-dev libopenblas-dev libhdf5-dev
"""
_LAYERS = """
    accuracy base_conv base_data batch_norm bias concat conv deconv dropout dummy_data eltwise
    euclidean_loss flatten inner_product input loss lrn memory_data neuron pooling power relu
    reshape scale sigmoid silence slice softmax softmax_loss split tanh
"""
_CORE = """
    blob common data_reader data_transformer internal_thread layer layer_factory net parallel
    solver syncedmem
"""
_PARTS = """
    bbox_util benchmark blocking_queue db hdf5 im2col insert_splits io math_functions
    signal_handler upgrade_proto
"""
_FLAGS = """
    -O1 -fPIC -std=c++14 -w -DCPU_ONLY=1 -DNDEBUG -DCAFFE_VERSION=1.0.0
    -DBOOST_BIND_GLOBAL_PLACEHOLDERS -Igen -Iinclude -I/usr/include/hdf5/serial
"""
_LIBRARIES = """
    -lboost_python311 -lboost_thread -lboost_system -lboost_filesystem -lboost_regex -lglog
    -lgflags -lprotobuf -lhdf5_hl -lhdf5 -lopenblas
"""
DEBIAN = tuple(_DEBIAN.split())
INIT = """\
from . import io
from ._caffe import Layer, __version__, get_solver, layer_type_list, set_mode_cpu, set_random_seed
from .proto.caffe_pb2 import TEST, TRAIN
from .pycaffe import AdamSolver, Net, SGDSolver
"""


def build(python: Path, cache: Path) -> Path:
    """Builds Caffe for an interpreter that has NumPy; a folder for PYTHONPATH.

    Raises CalledProcessError if a command fails, ValueError if the sources aren't the known ones.
    """
    compiler = _output("g++", "-dumpfullversion")
    version = _output(python, "-c", "import sys; print(sys.implementation.cache_tag)")
    if version != "cpython-311":
        raise ValueError(f"Debian's Boost.Python is for CPython 3.11, found {version}")
    result = cache / f"caffe-{SHA256[:8]}-{version}-gcc-{compiler}"
    if not result.exists():
        work = cache / "building"
        shutil.rmtree(work, ignore_errors=True)
        _unpack(_download(python, cache), work)
        _compile(python, work)
        _assemble(work, work / "result")
        (work / "result").rename(result)
        shutil.rmtree(work)
    return result


def _output(*command: object) -> str:
    done = subprocess.run(
        [str(part) for part in command], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def _download(python: Path, cache: Path) -> Path:
    archive = cache / f"{PACKAGE.replace('==', '-')}.tar.gz"
    if not archive.exists():
        options = ["--quiet", "--no-deps", "--no-binary", ":all:", "--dest", cache]
        _output(python, "-m", "pip", "download", *options, PACKAGE)
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != SHA256:
        raise ValueError(f"{archive.name} has SHA-256 {found}, expected {SHA256}")
    return archive


def _unpack(archive: Path, work: Path) -> None:
    """Unpacks all but a stray repository and code that an older protobuf has generated."""
    stale = ("caffe.pb.h", "caffe.pb.cc")
    with tarfile.open(archive) as tar:
        for member in tar:
            top, _, name = member.name.partition("/")
            if top and name and not name.startswith(".git") and not name.endswith(stale):
                member.name = name
                tar.extract(member, work, filter="data")
    for folder in ("gen/caffe/test", "objects", "py"):
        (work / folder).mkdir(parents=True)
    (work / "gen/caffe/test/test_caffe_main.hpp").touch()


def _compile(python: Path, work: Path) -> None:
    def run(*command: object) -> None:
        subprocess.run(
            [str(part) for part in command], cwd=work, check=True, capture_output=True, text=True
        )

    run("protoc", "--proto_path=src", "--cpp_out=gen", "--python_out=py", "caffe/proto/caffe.proto")
    sources = [f"src/caffe/{name}.cpp" for name in _CORE.split()]
    sources += [f"src/caffe/util/{name}.cpp" for name in _PARTS.split()]
    sources += [f"src/caffe/layers/{name}_layer.cpp" for name in _LAYERS.split()]
    sources += sorted(str(file.relative_to(work)) for file in work.glob("src/caffe/solvers/*.cpp"))
    sources += ["gen/caffe/proto/caffe.pb.cc", "python/caffe/_caffe.cpp"]
    where = "import numpy, sysconfig; print(sysconfig.get_path('include'), numpy.get_include())"
    headers = [f"-I{folder}" for folder in _output(python, "-c", where).split()]
    objects = [f"objects/{source.replace('/', '_')}.o" for source in sources]

    def one(source: str, target: str) -> None:
        run("nice", "g++", *_FLAGS.split(), *headers, "-c", source, "-o", target)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(one, reversed(sources), reversed(objects)))
    hdf5 = f"-L/usr/lib/{_output('g++', '-print-multiarch')}/hdf5/serial"
    run("g++", "-shared", "-o", "_caffe.so", *objects, hdf5, *_LIBRARIES.split())


def _assemble(work: Path, result: Path) -> None:
    """Makes the package; the original's `io` and `__init__` import what isn't needed here."""
    package = result / "caffe"
    (package / "proto").mkdir(parents=True)
    for name in ("_caffe.so", "python/caffe/pycaffe.py", "py/caffe/proto/caffe_pb2.py"):
        folder = package / "proto" if name.endswith("_pb2.py") else package
        shutil.copy(work / name, folder)
    (package / "io.py").touch()
    (package / "proto/__init__.py").touch()
    (package / "__init__.py").write_text(INIT)


if __name__ == "__main__":
    print(build(Path(sys.executable), Path(sys.argv[1]).resolve()))
