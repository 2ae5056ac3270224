"""Host memory within a container's limit, disks and mounts, versions of an interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.hardware import disk, host, versions

GIB = 1 << 30


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def test_cgroup_v2_takes_the_tightest_on_the_way_up(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/system.slice/job.service\n",
            "sys/fs/cgroup/system.slice/memory.max": str(4 * GIB),
            "sys/fs/cgroup/system.slice/memory.current": str(3 * GIB),
            "sys/fs/cgroup/system.slice/memory.stat": f"anon 5\ninactive_file {GIB}\n",
            "sys/fs/cgroup/system.slice/job.service/memory.max": "max\n",
        },
    )
    assert host.cgroup(root) == host.Cgroup(4 * GIB, 2 * GIB)


def test_cgroup_v2_of_a_container_whose_path_is_the_hosts(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/docker/abc\n",
            "sys/fs/cgroup/memory.max": str(GIB),
            "sys/fs/cgroup/memory.current": str(GIB // 2),
        },
    )
    assert host.cgroup(root) == host.Cgroup(GIB, GIB // 2)


def test_cgroup_v1(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "12:cpu,cpuacct:/a\n4:memory:/a\n",
            "sys/fs/cgroup/memory/a/memory.limit_in_bytes": str(2 * GIB),
            "sys/fs/cgroup/memory/a/memory.usage_in_bytes": str(GIB),
            "sys/fs/cgroup/memory/a/memory.stat": f"total_inactive_file {GIB // 4}\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    assert host.cgroup(root) == host.Cgroup(2 * GIB, GIB - GIB // 4)


@pytest.mark.parametrize("files", [{}, {"proc/self/cgroup": "garbage\n0::/x\n", "sys/fs/cgroup/memory.max": "max"}])
def test_no_limit(tmp_path: Path, files: dict[str, str]) -> None:
    assert host.cgroup(tree(tmp_path, files)) is None


def test_a_limit_bounds_the_memory_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "cgroup", lambda: host.Cgroup(GIB // 2, GIB // 4))
    sample = host.sample()
    assert sample["memory_total"] == sample["memory_limit"] == GIB // 2
    assert sample["memory_available"] <= GIB // 4
    assert sample["memory_used"] == sample["memory_total"] - sample["memory_available"]


def test_memory_of_a_process_tree() -> None:
    script = "import subprocess, sys; b = bytearray(40 << 20); p = subprocess.Popen([sys.executable, '-c', " \
             "'b = bytearray(40 << 20); print(1, flush=True); input()'], stdin=subprocess.PIPE); input()"  # fmt: skip
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        both = host.tree_memory([parent.pid])
        assert both > 80 << 20
        assert host.tree_memory([parent.pid, parent.pid]) < 1.2 * both, "a process counts once"
        parent.communicate(b"\n")
    assert host.tree_memory([parent.pid]) == 0
    assert host.sample([parent.pid])["memory_ranks"] == 0
    assert host.sample()["memory_ranks"] is None


MOUNTINFO = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
23 22 0:20 / /proc rw - proc proc rw
30 22 0:30 / /data ro,relatime - xfs /dev/nvme0n1 rw
31 30 0:31 / /data/my\\040runs rw - nfs4 server:/x rw
32 22 0:32 / /dev/shm rw - tmpfs tmpfs rw
33 22 0:33 / /mnt/resource rw - ext4 /dev/sdb1 rw
34 22 0:34 / /twice rw - ext4 /dev/a rw
35 22 0:35 / /twice rw - overlay overlay ro,lowerdir=/x
36 22 0:36 / /s3 rw - fuse.rclone remote: rw
broken line
"""


def test_mounts(tmp_path: Path) -> None:
    table_file = tmp_path / "mountinfo"
    table_file.write_text(MOUNTINFO)
    table = disk.mounts(table_file)

    def of(path: str) -> disk.Mount:
        return disk.mount_of(path, table)

    assert of("/home/x").device == "/dev/vda" and not of("/home/x").read_only
    assert of("/data").read_only and of("/data").fs == "xfs"
    assert of("/database").device == "/dev/vda", "a name that only begins like a mount point is not below it"
    assert of("/data/my runs/a").fs == "nfs4" and disk.is_network(of("/data/my runs/a"))
    assert of("/twice/x").fs == "overlay" and of("/twice/x").read_only
    guesses = {p: disk.persistence(of(p)) for p in ("/x", "/dev/shm/y", "/mnt/resource/z", "/s3", "/twice")}
    assert guesses == {
        "/x": "unknown",
        "/dev/shm/y": "temporary",
        "/mnt/resource/z": "temporary",
        "/s3": "persistent",
        "/twice": "temporary",
    }
    assert disk.mounts(tmp_path / "none") == []


def test_the_disk_of_a_path_that_is_not_there_yet(tmp_path: Path) -> None:
    found = disk.describe(tmp_path / "a" / "b")
    stat = os.statvfs(tmp_path)
    assert found.total == stat.f_blocks * stat.f_frsize
    assert found.writable and not found.read_only
    assert disk.sample(tmp_path / "a" / "b").keys() == {"path", "free", "total"}
    assert disk.sample(tmp_path / "a")["total"] == found.total


def test_versions_of_this_python() -> None:
    found = versions.packages(("pytest", "no-such-package"))
    assert found["packages"]["pytest"] == pytest.__version__
    assert found["packages"]["no-such-package"] is None
    assert found["executable"] == sys.executable


def test_versions_of_another_python(tmp_path: Path) -> None:
    """A virtual environment's python is a link to ours, and still another interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True, timeout=60)
    python = str(tmp_path / "env" / "bin" / "python")
    found = versions.packages(("pytest",), python)
    assert found["packages"] == {"pytest": None}
    assert found["executable"] == python


@pytest.mark.parametrize("content", ["#!/bin/sh\nexit 3\n", "#!/bin/sh\necho no json\n", None])
def test_a_python_that_does_not_work(tmp_path: Path, content: str | None) -> None:
    python = tmp_path / "python"
    if content is not None:
        python.write_text(content)
        python.chmod(0o755)
    with pytest.raises(OSError):
        versions.packages(("torch",), str(python))


def test_a_python_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 30\n")
    python.chmod(0o755)
    monkeypatch.setattr(versions, "TIMEOUT_S", 0.2)
    with pytest.raises(TimeoutError):
        versions.packages(("torch",), str(python))


def test_everything_for_a_rerun() -> None:
    found = versions.collect()
    assert {"python", "executable", "packages", "nccl", "driver", "cuda", "os", "kernel", "machine"} <= found.keys()
    assert found["packages"]["transformers"] is not None
    assert not any(name.startswith("nvidia-nccl") for name in found["packages"])
