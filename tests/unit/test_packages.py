"""What install.sh asks about an environment, on small environments made here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from engine import packages


def make_package(site: Path, name: str, version: str, *, listed: dict[str, str] | None = None) -> Path:
    """Install a package by hand: `listed` maps file names to the size column of its RECORD."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    if listed is not None:
        (info / "RECORD").write_text("".join(f"{path},sha256=x,{size}\n" for path, size in listed.items()))
    return info


@pytest.mark.parametrize(
    ("content", "size", "whole"),
    [("abc", "3", True), ("abc", "", True), ("abcdef", "3", True), ("a", "3", False), (None, "3", False)],
    ids=["there", "no size told", "edited", "cut short", "missing"],
)
def test_a_package_is_whole_when_its_files_are_there(tmp_path, content, size, whole):
    make_package(tmp_path, "first", "1.0", listed={"first.py": size, "__pycache__/first.pyc": "9"})
    if content is not None:
        (tmp_path / "first.py").write_text(content)
    assert packages.is_whole(str(tmp_path)) is whole


def test_a_package_without_its_list_of_files_is_not_whole(tmp_path):
    make_package(tmp_path, "first", "1.0", listed=None)
    assert not packages.is_whole(str(tmp_path))


def test_this_environment_is_whole():
    assert packages.main(["whole"]) == 0


def test_the_fingerprint_of_torch_sees_a_changed_file(tmp_path, monkeypatch):
    make_package(tmp_path, "torch", "9.9.1+cu130", listed={})
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    before = packages.torch_fingerprint()
    assert before is not None
    assert before.startswith("9.9.1+cu130 ")
    (tmp_path / "torch" / "__pycache__").mkdir()
    assert packages.torch_fingerprint() == before
    (tmp_path / "torch" / "_C.so").write_text("")
    assert packages.torch_fingerprint() != before


def test_what_a_run_recorded_is_taken_without_the_old_machines_builds():
    text = (
        "torch==2.12.0+cu128\nTransformers==5.24.0\nnvidia-cublas-cu12==12.8.4.1\nnvidia-ml-py==13.1\ntriton==3.6.0\n"
        "finetune-tui==0.1.0\npip==23.2\n# comment\nmine @ file:///home/me/mine\n-e /home/me/other\n"
        "odd_Name.x==1.0 ; python_version>'3'\n"
    )
    wants, rest = packages.recorded(text)
    assert wants == ["torch==2.12.0", "transformers==5.24.0", "nvidia-ml-py==13.1", "odd-name-x==1.0"]
    assert any(line.startswith("peft==") for line in rest)
    assert not any(line.startswith(("torch==", "transformers==", "nvidia-ml-py==")) for line in rest)


def test_an_environment_with_torch_lacks_only_what_is_missing_and_keeps_its_torch():
    tried = {name: line.split("==")[1] for name, line in packages.tried_versions().items()}
    there = tried | {
        "torch": "2.12.0+cu128",
        "torchvision": "0.27.0+cu128",
        "nvidia-cublas-cu12": "12.8",
        "numpy": "2.3.5",
    }
    del there["peft"], there["typer"]
    there["trl"] = "0.9.0"
    wants, pins = packages.lacks(there)
    assert [w.split(">")[0] for w in sorted(wants)] == ["peft", "trl"]
    assert {"torch===2.12.0+cu128", "torchvision===0.27.0+cu128", "nvidia-cublas-cu12===12.8"} <= set(pins)
    assert {line.split("==")[0] for line in pins if "===" not in line} >= {"peft", "trl", "typer"}
    assert not any(line.startswith("numpy=") for line in pins)


def test_an_old_torch_is_refused():
    with pytest.raises(packages.Unsuitable, match=r"has torch 2\.1\.0; needed is torch>="):
        packages.lacks({"torch": "2.1.0"})


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("exit 1", "is not a Python that works"),
        ("echo nonsense", "is not a Python that works"),
        ("""echo '{"version": [3, 9]}'""", "is Python 3.9"),
        ("""echo '{"version": [3, 11], "path": []}'""", "has no torch"),
        (
            """echo '{"version": [3, 11], "path": ["SITE"], "managed": true, "writable": true}'""",
            "may not be installed into",
        ),
        (
            """echo '{"version": [3, 11], "path": ["SITE"], "managed": false, "writable": false}'""",
            "may not be installed into",
        ),
    ],
)
def test_an_environment_that_does_not_suit_is_named_with_its_reason(tmp_path, capsys, answer, reason):
    make_package(tmp_path / "site", "torch", "2.13.0", listed={})
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\n" + answer.replace("SITE", str(tmp_path / "site")) + "\n")
    python.chmod(0o755)
    assert packages.main(["lacks", str(python)]) == 1
    what, fix = capsys.readouterr().out.split("\n")
    assert what.startswith(reason)
    assert fix


def test_this_environment_suits_for_training_or_says_why(tmp_path, capsys):
    assert packages.main(["lacks", sys.executable, str(tmp_path)]) == 0, capsys.readouterr().out
    assert "torch===" in (tmp_path / "pins.txt").read_text()
    assert (tmp_path / "wants.txt").exists()
