"""Lets PyTorch's wheel, which is built for CUDA, run on the CPU without CUDA's libraries.

Those take 3 GB. For each that is missing a small library is written whose functions return an
error code; PyTorch then finds no GPU and computes on the CPU.
"""

import re
import subprocess
import tempfile
from collections import defaultdict
from pathlib import Path

WHERE = (
    "import importlib.util as util; "
    "print(util.find_spec('torch').submodule_search_locations[0] + '/lib')"
)
# Functions of no library's version belong to the missing library whose name they begin with.
ELSEWHERE = ("nvrtc", "nccl", "nvshmem")
NAME = re.compile(r"[A-Za-z_]\w*")


def write(folder: Path) -> None:
    """Writes what is missing beside PyTorch's own libraries; needs gcc, nm and readelf."""
    ours = {file.name: file for file in folder.glob("*.so*")}
    system = set(re.findall(r"^\s+(\S+) \(", _said("ldconfig", "-p"), re.MULTILINE))
    symbols = [symbol for file in ours.values() for symbol in _symbols(file, "--defined-only")]
    defined = {symbol.partition("@")[0] for symbol in symbols}
    needed = _needed(ours.values(), system | set(ours))
    for missing, users in needed.items():
        wanted = [name for user in users for name in _symbols(user, "--undefined-only")]
        _write(folder / missing, _belonging(wanted, missing, set(needed), defined))


def _said(*command: object) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
    return done.stdout


def _symbols(library: Path, which: str) -> list[str]:
    lines = _said("nm", "--dynamic", which, library).splitlines()
    return [line.split()[-1] for line in lines if line]


def _needed(libraries: object, there: set[str]) -> dict[str, list[Path]]:
    """The libraries that aren't there, and who asks for them."""
    needed = defaultdict(list)
    for library in libraries:
        for name in re.findall(r"NEEDED.*\[(.*?)\]", _said("readelf", "-dW", library)):
            if name not in there:
                needed[name].append(library)
    return needed


def _belonging(
    symbols: list[str], library: str, needed: set[str], defined: set[str]
) -> dict[str, set[str]]:
    """Those of the symbols that a library has to define, by version.

    The version is most often the name of the library.
    """
    stem = re.match(r"lib([a-z]{1,5})", library)[1]
    found = defaultdict(set)
    for symbol in symbols:
        name, _, version = symbol.partition("@")
        theirs = name.lower().startswith((stem, *ELSEWHERE)) and name not in defined
        if NAME.fullmatch(name) and (version == library or (theirs and version not in needed)):
            found[version].add(name)
    return found


def _write(file: Path, symbols: dict[str, set[str]]) -> None:
    names = sorted(set().union(*symbols.values()))
    code = "".join(
        f'const char *{name}(void) {{ return "none"; }}\n'
        if re.search("String|Name", name)
        else f"int {name}(void) {{ return 1; }}\n"
        for name in names
    )
    versions = "".join(
        f"{version} {{ global: {'; '.join(sorted(named))}; }};\n"
        for version, named in symbols.items()
        if version
    )
    command = ["gcc", "-shared", "-fPIC", "-w", "-x", "c", "-", f"-Wl,-soname,{file.name}"]
    with tempfile.NamedTemporaryFile("w", suffix=".map") as script:
        script.write(versions)
        script.flush()
        if versions:
            command.append(f"-Wl,--version-script={script.name}")
        code = code or "int ropeway_stub;\n"
        subprocess.run([*command, "-o", str(file)], input=code, text=True, check=True)
