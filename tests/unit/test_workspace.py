"""The workspace: where it is, run folders that appear whole or not at all, and places that cannot be written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.errors import FtuiError, UsageError
from engine.workspace import RunFolder, Workspace, locate


def fill(folder: RunFolder, name: str) -> None:
    folder.state.write_text("{}")
    folder.resolved.write_text(f'{{"run": "{name}"}}')


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "w").prepare()


def test_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert locate(tmp_path / "given").root == tmp_path / "given"
    assert locate().root == Path(os.environ["FTUI_HOME"])
    monkeypatch.setenv("FTUI_HOME", "~/elsewhere")
    assert locate().root == Path.home() / "elsewhere"


def test_names_are_claimed_one_after_the_other(workspace: Workspace) -> None:
    names = [workspace.claim_run(None, "lora sft!", fill).name for _ in range(3)]
    assert names == ["lora-sft-1", "lora-sft-2", "lora-sft-3"]
    assert workspace.claim_run("mine", "x", fill).read_resolved() == {"run": "mine"}
    with pytest.raises(UsageError, match="already"):
        workspace.claim_run("mine", "x", fill)


@pytest.mark.parametrize("name", ["", ".hidden", "../up", "a/b", "a b", "-x", "x" * 101, "ж"])
def test_bad_names_are_refused(workspace: Workspace, name: str) -> None:
    with pytest.raises(UsageError, match="cannot be a run's name"):
        workspace.claim_run(name, "x", fill)


def test_two_processes_never_get_the_same_folder(workspace: Workspace) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom engine.workspace import Workspace\n"
        "def fill(folder, name): folder.state.write_text(name)\n"
        "workspace = Workspace(Path(sys.argv[1]))\n"
        "for _ in range(20): print(workspace.claim_run(None, 'run', fill).name)"
    )
    both = [
        subprocess.Popen([sys.executable, "-c", code, str(workspace.root)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    names = [name for process in both for name in process.communicate(timeout=60)[0].split()]
    assert len(names) == len(set(names)) == 40
    for name in names:
        assert RunFolder(workspace.runs_dir / name).state.read_text() == name


def test_a_failure_half_way_leaves_nothing(workspace: Workspace) -> None:
    def full_disk(folder: RunFolder, _name: str) -> None:
        fill(folder, "x")
        raise OSError(28, "No space left on device")

    def killed(_folder: RunFolder, _name: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(FtuiError, match="No space left") as caught:
        workspace.claim_run("a", "x", full_disk)
    assert caught.value.fix and caught.value.where
    with pytest.raises(KeyboardInterrupt):
        workspace.claim_run("a", "x", killed)
    assert os.listdir(workspace.runs_dir) == []


def test_a_place_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for root in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/ftui-test")):
        with pytest.raises(FtuiError, match="cannot be written") as caught:
            Workspace(root).prepare()
        assert caught.value.where == str(root)
        assert "--home" in str(caught.value.fix)


def test_an_immutable_folder_is_refused_even_for_root(tmp_path: Path) -> None:
    home = tmp_path / "w"
    home.mkdir()
    if subprocess.run(["chattr", "+i", home], capture_output=True).returncode != 0:
        pytest.skip("the file system has no immutable flag, or this is not root")
    try:
        with pytest.raises(FtuiError, match="cannot be written"):
            Workspace(home).prepare()
    finally:
        subprocess.run(["chattr", "-i", home], check=True)


def test_what_lies_between_the_runs_is_no_run(workspace: Workspace) -> None:
    workspace.claim_run("a", "x", fill)
    (workspace.runs_dir / "empty").mkdir()
    (workspace.runs_dir / "file").write_text("")
    (workspace.runs_dir / "loop").symlink_to("loop")
    (workspace.runs_dir / "etc").symlink_to("/etc")
    assert {run.name for run in workspace.folders()} == {"a", "empty", "etc"}
    for wrong in ("empty", "file", "loop", "etc", "e"):
        with pytest.raises(UsageError, match="no run"):
            workspace.find(wrong)


def test_runs_that_cannot_be_read_are_not_no_runs(tmp_path: Path) -> None:
    assert Workspace(tmp_path / "new").folders() == []
    (tmp_path / "file").write_text("")
    with pytest.raises(FtuiError, match="cannot be listed") as caught:
        Workspace(tmp_path / "file").folders()
    assert caught.value.where and "--home" in str(caught.value.fix)


def test_find_by_name_prefix_and_path(workspace: Workspace) -> None:
    for name in ("llama-1", "llama-2", "qwen"):
        workspace.claim_run(name, "x", fill)
    assert workspace.find("qwen").name == "qwen"
    assert workspace.find("q").name == "qwen"
    assert workspace.find(str(workspace.runs_dir / "llama-1")).name == "llama-1"
    with pytest.raises(UsageError, match="several"):
        workspace.find("llama")
    for wrong in ("nothing", "", "../w", "/etc", "/tmp/" + "x" * 300, "x" * 10_000, "Привет мир", "a\0b", "/a\0b"):
        with pytest.raises(UsageError):
            workspace.find(wrong)


def test_what_a_kill_left_behind_is_no_run(workspace: Workspace) -> None:
    code = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom engine.workspace import Workspace\n"
        "def fill(folder, name):\n    folder.state.write_text('{')\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        "Workspace(Path(sys.argv[1])).claim_run('a', 'x', fill)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(workspace.root)]).returncode == -9
    assert workspace.runs() == []
    assert workspace.claim_run("a", "x", fill).name == "a"
