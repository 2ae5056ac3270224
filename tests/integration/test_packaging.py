"""The wheel holds everything that ftui needs, and constraints.txt fits what it asks for."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from engine.packages import tried_versions

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel of these sources: of a copy, since setuptools would mix in what an earlier build left behind."""
    source = tmp_path_factory.mktemp("source")
    for name in ("tui", "engine", "recipes"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    for path in ROOT.glob("*.*"):
        if path.suffix in (".toml", ".md", ".txt"):
            shutil.copy2(path, source)
    shutil.copy2(ROOT / "LICENSE", source)
    pip = [sys.executable, "-m", "pip", "wheel", ".", "-q", "--no-deps", "--no-build-isolation", "-w", "dist"]
    subprocess.run(pip, cwd=source, check=True, capture_output=True, text=True)
    (built,) = (source / "dist").glob("finetune_tui-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    target = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-compile", "--target", target, wheel]
    subprocess.run(pip, check=True, capture_output=True, text=True)
    return target


def run_from(installed: Path, *command: str | Path) -> str:
    env = os.environ | {"PYTHONPATH": str(installed), "PYTHONSAFEPATH": "1"}
    return subprocess.run(command, env=env, cwd="/", check=True, capture_output=True, text=True, timeout=60).stdout


def test_the_wheel_holds_every_file_of_the_three_packages_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    wanted = {
        path.relative_to(ROOT).as_posix()
        for package in ("tui", "engine", "recipes")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and not any(part.startswith((".", "__pycache__")) for part in path.relative_to(ROOT).parts)
    }
    assert held == wanted
    assert {"recipes/demo.yaml", "tui/screens/run.tcss"} <= held
    assert any(name.startswith("recipes/data/") and name.endswith(".jsonl") for name in held)


def test_the_wheel_says_its_license_and_its_command(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (info,) = {name.split("/")[0] for name in archive.namelist() if ".dist-info/" in name}
        metadata = archive.read(f"{info}/METADATA").decode()
        assert "Apache License" in archive.read(f"{info}/licenses/LICENSE").decode()
        assert "ftui = tui.__main__:main" in archive.read(f"{info}/entry_points.txt").decode()
    assert "License-Expression: Apache-2.0" in metadata
    # What the light side imports carries no training library along; that is the extra's part.
    always = [line for line in metadata.splitlines() if line.startswith("Requires-Dist:") and "extra ==" not in line]
    assert not [line for line in always if "torch" in line or "transformers" in line or "trl" in line]


def test_ftui_runs_from_the_wheel(installed):
    assert run_from(installed, sys.executable, "-c", "import tui; print(tui.__file__)").startswith(str(installed))
    assert "usage: ftui" in run_from(installed, sys.executable, installed / "bin" / "ftui", "--help")


def test_the_recipes_are_found_in_the_wheel(installed):
    code = "from engine.recipe import find, names; print(*[find(name) for name in names()], sep='\\n')"
    found = run_from(installed, sys.executable, "-c", code).splitlines()
    assert {Path(line).name for line in found} == {path.name for path in (ROOT / "recipes").glob("*.yaml")}
    assert all(line.startswith(str(installed)) for line in found)


def requirements_of(name: str) -> list[str]:
    """Of this project as pyproject.toml says now; of others as they are installed."""
    if name != "finetune-tui":
        return importlib.metadata.requires(name) or []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    return project["dependencies"] + [f"{line}; extra == '{name}'" for name in extras for line in extras[name]]


def test_every_package_that_is_needed_is_pinned_to_a_version_that_fits():
    tried = tried_versions()
    seen: set[tuple[str, str]] = set()
    todo = [("finetune-tui", extra) for extra in ("", "train", "dev")]
    wrong = []
    while todo:
        name, extra = todo.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        for line in requirements_of(name):
            need = Requirement(line)
            if need.marker and not need.marker.evaluate({"extra": extra}):
                continue
            other = canonicalize_name(need.name)
            version = tried.get(other, "").partition("==")[2]
            if not version or not need.specifier.contains(version, prereleases=True):
                wrong.append(f"{name} needs {need}; constraints.txt says {version or 'nothing'}")
            else:
                todo += [(other, wanted) for wanted in (need.extras or [""])]
                todo.append((other, ""))
    assert not wrong
    assert ("tokenizers", "") in seen
