"""Sets up an environment for each array framework, and runs the checks in it.

    python tests/frameworks/environments.py [--light | --rest] [NAME ...]

Environments are kept in `.envs` and made again when what they need has changed. A framework that
can't be set up is named, with the reason. That is a failure, unless this machine lacks something
that only its owner can give (then it is called unavailable).
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import caffe_build
import torch_stubs

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS = ROOT / ".envs"
CACHE = ENVIRONMENTS / "cache"
TOOLS = ("pytest>=8", "pytest-timeout>=2.3", "hypothesis>=6.100", "cloudpickle>=3", "joblib>=1.4")
TRIALS = ("r12_*", "r19_*", "r20_*", "r22_*", "r25_*", "r41_*")  # with torch and JAX
PATIENCE = 1800.0
USABLE = "import ensurepip, sysconfig, sys; sys.exit(sysconfig.get_config_var('Py_GIL_DISABLED'))"


class Unavailable(Exception):
    """This machine lacks something that can't be installed from here."""


class Failed(Exception):
    """A command failed; the text is the end of what it said."""


@dataclass(frozen=True)
class Environment:
    """What one framework needs, and which example shows it."""

    packages: tuple[str, ...] = ()
    without_dependencies: tuple[str, ...] = ()
    debian: tuple[str, ...] = ()
    python: str = "given"
    module: str | None = None
    stubs: bool = False
    caffe: bool = False
    light: bool = False
    trials: bool = False
    contest: bool = False
    tests: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()


NUMPY_1 = "numpy==1.26.4"
TORCH = "torch==2.15.0"
ALL = {
    "numpy-1.26": Environment((NUMPY_1,), module="numpy", light=True),
    "numpy": Environment(("numpy",), python="newest", light=True),
    "ml_dtypes": Environment(("numpy", "ml_dtypes"), python="newest", light=True),
    "pyarrow": Environment(("pyarrow", "ml_dtypes"), light=True),
    "tvm-ffi": Environment(
        ("numpy", "apache-tvm-ffi"), module="tvm_ffi", python="newest", light=True
    ),
    "onnxruntime": Environment(("onnxruntime", "onnx", "ml_dtypes"), light=True),
    "mxnet": Environment(
        (NUMPY_1, "requests<3", "ml_dtypes"),
        without_dependencies=("mxnet==1.9.1",),
        light=True,
        examples=("mxnet_numpy_one_buffer.py",),
    ),
    "jax": Environment(("jax[cpu]",), python="newest", light=True, trials=True),
    "caffe": Environment(
        (NUMPY_1, "six", "protobuf", "pillow", "requests<3", "typing_extensions"),
        # MXNet and PyTorch for a check of all in one process, scikit-image for the photos
        without_dependencies=("mxnet==1.9.1", TORCH, "scikit-image"),
        debian=caffe_build.DEBIAN,
        stubs=True,
        caffe=True,
        examples=("caffe_regression.py",),
    ),
    "torch": Environment(
        ("numpy", "typing_extensions", "ml_dtypes"),
        without_dependencies=(TORCH,),
        stubs=True,
        trials=True,
        tests=("dropin/test_*.py", "trials/test_*_dropin.py"),
    ),
    "loaders": Environment(
        (
            *("numpy", "typing_extensions", "grain", "spdl-core"),
            *("pillow", "scikit-image", "scikit-learn"),
        ),
        without_dependencies=(TORCH,),
        stubs=True,
        contest=True,
    ),
    "torch-1.13": Environment(
        (NUMPY_1, "ml_dtypes"),
        debian=("python3-torch", "python3-venv"),
        python="debian",
        module="torch",
    ),
    "tensorflow": Environment(("tensorflow-cpu",)),
    "cupy": Environment(("cupy-cuda13x",)),
    "mlx": Environment(("mlx[cpu]", "numpy", "ml_dtypes")),
}


def main() -> int:
    """Sets up and checks what was asked for; 1 if anything failed or isn't set up."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    some = parser.add_mutually_exclusive_group()
    some.add_argument("--light", action="store_true", help="only those that are set up quickly")
    some.add_argument("--rest", action="store_true", help="only the others")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(ALL))
    options = parser.parse_args()
    if unknown := set(options.names) - set(ALL):
        parser.error(f"no environment {', '.join(sorted(unknown))}; there are {', '.join(ALL)}")
    names = options.names or [
        name
        for name, env in ALL.items()
        if not env.contest and not (options.rest if env.light else options.light)
    ]
    wheel = build_wheel()
    good = [report(name, wheel) for name in names]
    return 0 if all(good) else 1


def report(name: str, wheel: Path) -> bool:
    """Sets up and checks one environment, and says in a line how that went."""
    began = time.monotonic()
    try:
        python = set_up(name, ALL[name], wheel)
    except Unavailable as why:
        say(name, f"unavailable: {why}")
        return True
    except (Failed, OSError, ValueError) as why:
        say(name, f"NOT SET UP: {why}")
        return False
    ready = time.monotonic()
    try:
        outcome = check(name, ALL[name], python)
    except Failed as why:
        say(name, f"FAILED:\n{why}")
        return False
    end = time.monotonic()
    say(name, f"{outcome}; set up in {ready - began:.0f} s, checked in {end - ready:.0f} s")
    return True


def say(name: str, what: str) -> None:
    print(f"{name + ':':<13}{what}", flush=True)


def build_wheel() -> Path:
    """The wheel of this checkout."""
    folder = ENVIRONMENTS / "wheel"
    shutil.rmtree(folder, ignore_errors=True)
    maturin = Path(sys.executable).with_name("maturin")
    run([maturin, "build", "--release", "--quiet", "--out", folder], cwd=ROOT)
    (wheel,) = folder.glob("*.whl")
    return wheel


def set_up(name: str, env: Environment, wheel: Path) -> Path:
    """Makes the environment, unless it is there; its interpreter."""
    folder = ENVIRONMENTS / name
    python = folder / "bin/python"
    base = interpreter(env.python)
    install_debian(env.debian)
    packages = (*env.packages, *env.without_dependencies, *TOOLS, f"stubs: {env.stubs}")
    wanted = "\n".join([*packages, str(base), run([base, "-V"])])
    if read(folder / "made") != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        seen = ["--system-site-packages"] if env.python == "debian" else []
        run([base, "-m", "venv", *seen, folder])
        install(python, *env.packages, *TOOLS)
        if env.without_dependencies:
            install(python, "--no-deps", *env.without_dependencies)
        if env.stubs:
            torch_stubs.write(Path(run([python, "-c", torch_stubs.WHERE])))
        (folder / "made").write_text(wanted)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if read(folder / "wheel") != digest:
        install(python, "--force-reinstall", "--no-deps", str(wheel))
        (folder / "wheel").write_text(digest)
    return python


def check(name: str, env: Environment, python: Path) -> str:
    """Runs the checks, the trials about exchange and the examples; what pytest says at the end.

    An environment for a contest is only there to be measured in.
    """
    if env.contest:
        return "ready"
    module = env.module or name
    here = ROOT / "tests/frameworks"
    files = [here / f"check_{module}.py"]
    if (here / f"adapters/of_{module}.py").exists():
        files.append(here / "check_shared.py")
    for pattern in TRIALS if env.trials else ():
        files += (ROOT / "tests/trials").glob(f"test_{pattern}")
    found = sorted(str(file) for file in files if file.exists())
    surroundings = dict(os.environ, GLOG_minloglevel="2", TF_CPP_MIN_LOG_LEVEL="2")
    if env.caffe:
        try:
            folder = caffe_build.build(python, CACHE)
        except subprocess.CalledProcessError as error:
            raise Failed(f"building Caffe: {error.stderr[-2000:]}") from error
        surroundings["PYTHONPATH"] = str(folder)
    options = ["-q", "-p", "no:cacheprovider", "--framework", module]
    said = run([python, "-m", "pytest", *options, *found], cwd=ROOT, env=surroundings)
    said = said.splitlines()[-1].strip("= ")
    if env.tests:
        found = sorted(str(f) for pattern in env.tests for f in (ROOT / "tests").glob(pattern))
        more = run([python, "-m", "pytest", *options[:3], *found], cwd=ROOT, env=surroundings)
        said += f"; {more.splitlines()[-1].strip('= ')}"
    for example in env.examples:
        print(run([python, ROOT / "examples" / example], cwd=ROOT, env=surroundings))
    version = run([python, "-c", "import sys; print('CPython', sys.version.split()[0])"])
    return f"{said} ({version})"


def interpreter(kind: str) -> Path:
    """Finds an interpreter: the one that runs this, Debian's, or the newest there is."""
    given = Path(sys.base_prefix, "bin", f"python{sys.version_info[0]}.{sys.version_info[1]}")
    if kind == "given":
        return given
    if kind == "debian":
        if not Path("/etc/debian_version").exists() or not Path("/usr/bin/python3.11").exists():
            raise Unavailable("needs Debian 12 with its CPython 3.11")
        return Path("/usr/bin/python3.11")
    for minor in (14, 13, 12):
        for place in candidates(f"python3.{minor}"):
            done = subprocess.run([place, "-c", USABLE], capture_output=True, check=False)
            if done.returncode == 0:
                return place
    return given


def candidates(name: str) -> list[Path]:
    """Where an interpreter of that name may be: on the path, or one that pyenv has."""
    found = shutil.which(name)
    pyenv = shutil.which("pyenv")
    places = sorted(Path(run([pyenv, "root"])).glob(f"versions/*/bin/{name}")) if pyenv else []
    return [*places, *([Path(found)] if found else [])]


def install(python: Path, *what: str) -> None:
    run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *what])


def install_debian(packages: tuple[str, ...]) -> None:
    """Installs packages of Debian that are missing, if this user may."""
    missing = [package for package in packages if not installed(package)]
    if not missing:
        return
    if shutil.which("apt-get") is None:
        raise Unavailable(f"needs Debian packages: {' '.join(missing)}")
    if os.geteuid() != 0:
        raise Unavailable(f"needs root to run: apt-get install {' '.join(missing)}")
    quiet = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    run(["apt-get", "update", "-qq"], env=quiet)
    run(["apt-get", "install", "-qq", "--no-install-recommends", *missing], env=quiet)


def installed(package: str) -> bool:
    query = ["dpkg-query", "--show", "--showformat", "${Status}", package]
    if shutil.which(query[0]) is None:
        return False
    done = subprocess.run(query, capture_output=True, text=True, check=False)
    return done.stdout == "install ok installed"


def read(file: Path) -> str:
    return file.read_text() if file.exists() else ""


def run(command: list[str | Path], **how: object) -> str:
    """Runs a command; its output, or `Failed` with the end of what it said."""
    text = " ".join(map(str, command))
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE, check=False, **how
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"{text[:200]} took longer than {PATIENCE:.0f} s") from None
    if done.returncode != 0:
        said = "\n".join((done.stdout + done.stderr).splitlines()[-60:])
        raise Failed(f"{text[:200]} ended with {done.returncode}:\n{said}")
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
