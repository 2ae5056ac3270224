"""What a Python environment holds: the questions that install.sh asks.

Run as a script by path, because it also looks into environments where this package is not installed yet, and
with the standard library alone where the environment itself has to answer:

    python -P engine/packages.py whole                  exit 0 when every file of every package is there
    python -P engine/packages.py torch                  version and fingerprint of this environment's torch
    python -P engine/packages.py lacks PYTHON [FOLDER]  whether PYTHON suits; what it lacks (wants.txt, pins.txt)
    python -P engine/packages.py recorded FILE FOLDER   what a run recorded (requirements.txt, constraints.txt)
"""

from __future__ import annotations

import csv
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

#: torch and what was built with it or for it: its build decides about these, so they are never asked for by version.
TORCH_FAMILY = re.compile(r"torch(vision|audio|ao|data)?|(pytorch-)?triton(-.*)?|nvidia-(?!ml-py$).*")
OWN = ("finetune-tui", "pip", "setuptools", "wheel")


class Unsuitable(Exception):
    """An environment that cannot be used for training: what is wrong, and the fix."""


def normalized(name: str) -> str:
    """A distribution's name in the one spelling that comparisons use."""
    return re.sub(r"[-_.]+", "-", name).lower()


def is_whole(site: str) -> bool:
    """Whether every package under `site` has all the files it lists: an interrupted install leaves some without."""
    for dist in importlib.metadata.distributions(path=[site]):
        rows = list(csv.reader((dist.read_text("RECORD") or "").splitlines()))
        if not rows:
            return False
        for path, _, size in rows:
            if path.endswith(".pyc"):
                continue
            try:
                found = os.stat(os.path.join(site, path)).st_size
            except OSError:
                return False
            if size and found < int(size):
                return False
    return True


def torch_fingerprint() -> str | None:
    """Version of the running interpreter's torch and a hash over the names, sizes and times of its files."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return None
    seen = hashlib.sha256()
    for folder, folders, names in os.walk(spec.submodule_search_locations[0]):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(names):
            path = os.path.join(folder, name)
            stat = os.lstat(path)
            seen.update(f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
    return f"{importlib.metadata.version('torch')} {seen.hexdigest()}"


def tried_versions() -> dict[str, str]:
    """The lines of constraints.txt by package."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return {normalized(line.split("==")[0]): line for line in lines if re.match(r"[\w.-]+==", line)}


def lacks(there: dict[str, str]) -> tuple[list[str], list[str]]:
    """What an environment with the packages `there` (name: version) lacks for training, and what has to hold then.

    The torch family stays to the letter; new packages come in the tried versions; anything else that is there
    moves only where a new package requires it.

    Raises:
        Unsuitable: its torch is too old.
    """
    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wants = {}
    for line in project["dependencies"] + project["optional-dependencies"]["train"]:
        need = Requirement(line)
        version = there.get(normalized(need.name))
        if version is None or not need.specifier.contains(version, prereleases=True):
            wants[normalized(need.name)] = line
    if "torch" in wants:
        raise Unsuitable(f"has torch {there.get('torch')}; needed is {wants['torch']}", "name one with a newer torch")
    pins = [f"{name}==={version}" for name, version in there.items() if TORCH_FAMILY.fullmatch(name)]
    pins += [line for name, line in tried_versions().items() if name in wants or name not in there]
    return list(wants.values()), pins


def recorded(text: str) -> tuple[list[str], list[str]]:
    """Requirements from the requirements.txt of a run, and the tried versions of what it does not name.

    The build of torch (`+cu128`) and the libraries that come with it are this machine's choice; packages that lay
    on the other machine's disk cannot be had.
    """
    found = re.findall(r"^([A-Za-z0-9][\w.-]*)==([^\s;#+]+)", text, re.MULTILINE)
    versions = {normalized(name): version for name, version in found if normalized(name) not in OWN}
    kept = {n: v for n, v in versions.items() if not TORCH_FAMILY.fullmatch(n) or n.startswith("torch")}
    return (
        [f"{name}=={version}" for name, version in kept.items()],
        [line for name, line in tried_versions().items() if name not in versions],
    )


#: Asked of the other interpreter, which may be too old for this file.
PROBE = """
import json, os, sys, sysconfig
marker = os.path.join(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED")
print(json.dumps({
    "version": sys.version_info[:2],
    "path": [p for p in sys.path if p],
    "managed": sys.prefix == sys.base_prefix and os.path.exists(marker),
    "writable": os.access(sysconfig.get_path("purelib"), os.W_OK),
}))
"""


def packages_of(python: str) -> dict[str, str]:
    """The packages of another environment (name: version), if it can be used for training.

    Raises:
        Unsuitable: it cannot.
    """
    name_one = "name the folder, or the python, of an environment with torch"
    try:
        answer = subprocess.run([python, "-c", PROBE], cwd="/", check=True, capture_output=True, text=True, timeout=60)
        found = json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        raise Unsuitable("is not a Python that works", name_one) from None
    if found["version"] < [3, 11]:
        raise Unsuitable("is Python {}.{}; needed is 3.11 or newer".format(*found["version"]), name_one)
    there: dict[str, str] = {}
    for dist in importlib.metadata.distributions(path=found["path"]):
        # The first on the path is the one that is imported.
        if dist.metadata["Name"]:
            there.setdefault(normalized(dist.metadata["Name"]), dist.version)
    if "torch" not in there:
        raise Unsuitable("has no torch", f"{name_one}, or leave --python and FTUI_PYTHON away")
    if found["managed"] or not found["writable"]:
        fix = f"put an environment on top of it: {python} -m venv --system-site-packages DIR, then name DIR"
        raise Unsuitable("may not be installed into", fix)
    return there


def _write(folder: str, **files: list[str]) -> None:
    for name, lines in files.items():
        (Path(folder) / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def main(words: list[str]) -> int:
    """Answer one question; texts go to install.sh, which speaks before any translation is installed."""
    match words:
        case ["whole"]:
            return 0 if is_whole(sysconfig.get_path("purelib")) else 1
        case ["torch"]:
            answer = torch_fingerprint()
            sys.stdout.write(f"{answer}\n" if answer else "")
            return 0 if answer else 1
        case ["lacks", python, *folders]:
            try:
                there = packages_of(python)
                for folder in folders:
                    wants, pins = lacks(there)
                    _write(folder, wants=wants, pins=pins)
            except Unsuitable as error:
                sys.stdout.write("\n".join(error.args))
                return 1
            return 0
        case ["recorded", file, folder]:
            requirements, constraints = recorded(Path(file).read_text(encoding="utf-8", errors="replace"))
            _write(folder, requirements=requirements, constraints=constraints)
            sys.stdout.write(f"{len(requirements)}\n")
            return 0 if requirements else 1
    sys.stderr.write(f"{__doc__}\n")
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
