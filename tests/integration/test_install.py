"""install.sh: its choices with a private PATH of stand-in programs, its repairs and its words to the user.

Nothing is installed here, except by the test that is marked soak: that one installs a fresh clone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = (
    "awk",
    "bash",
    "basename",
    "cat",
    "chmod",
    "cut",
    "df",
    "dirname",
    "env",
    "find",
    "grep",
    "ln",
    "ls",
    "mkdir",
    "printf",
)
TOOLS += ("readlink", "realpath", "rm", "sed", "sh", "sha256sum", "sleep", "tail", "flock", "id")


class Machine:
    """A PATH with the basic tools and the programs that a test puts there, and a copy of install.sh."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.bin = root / "bin"
        self.bin.mkdir()
        for tool in TOOLS:
            found = shutil.which(tool)
            if found:
                (self.bin / tool).symlink_to(found)
        self.checkout = root / "a checkout"
        (self.checkout / "engine").mkdir(parents=True)
        for name in ("install.sh", "pyproject.toml", "constraints.txt", "engine/packages.py"):
            shutil.copy2(ROOT / name, self.checkout / name)
        self.links = root / "links"
        self.env = {"PATH": str(self.bin), "HOME": str(root / "home"), "FTUI_BIN_DIR": str(self.links)}

    def program(self, name: str, script: str) -> Path:
        path = self.bin / name
        path.unlink(missing_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    def python(self, name: str, version: tuple[int, int], *, venv: bool = True) -> None:
        """A Python of that version: the real one, told to say so."""
        lie = f"import sys; sys.version_info = {version} + (0, 'final', 0)\n"
        lie += "" if venv else "sys.modules['ensurepip'] = None\n"
        self.program(name, f'[ "$2" = -c ] || exit 9\nexec {sys.executable} -I -c "{lie}$3"')

    def functions(self, code: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run bash code with install.sh's functions."""
        code = f'set -euo pipefail; source "{self.checkout}/install.sh"; {code}'
        return self._run(["bash", "-c", code], env)

    def install(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        return self._run([str(self.checkout / "install.sh"), *words], env)

    def _run(self, command: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, env=self.env | env, capture_output=True, text=True, timeout=60, cwd=self.root)


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_the_newest_python_that_works_is_chosen(machine):
    machine.program("python3.14", "echo 'pyenv: python3.14: command not found' >&2; exit 127")
    machine.python("python3.12", (3, 12))
    machine.python("python3.11", (3, 11))
    machine.python("python3", (3, 10))
    assert machine.functions('choose_python; echo "$BASE"').stdout == f"{machine.bin}/python3.12\n"


def test_a_python_that_suits_under_a_plain_name_is_found(machine):
    machine.python("python3", (3, 13))
    assert machine.functions('choose_python; echo "$BASE"').stdout == f"{machine.bin}/python3\n"


@pytest.mark.parametrize("version", [(3, 10), (3, 15), (2, 7)])
def test_a_python_outside_the_tried_range_is_not_chosen(machine, version):
    machine.python("python3", version)
    assert machine.functions('choose_python; echo "<$BASE>"').stdout == "<>\n"


def test_a_python_without_venv_gives_way_and_is_named_when_it_is_the_only_one(machine):
    machine.python("python3.12", (3, 12), venv=False)
    machine.python("python3.11", (3, 11))
    assert machine.functions('choose_python; echo "$BASE"').stdout.endswith("/python3.11\n")
    (machine.bin / "python3.11").unlink()
    result = machine.install()
    assert result.returncode == 1
    assert "python3.12 has no venv module" in result.stderr
    assert "apt-get install python3.12-venv" in result.stderr
    # uv makes environments by itself.
    assert machine.functions('UV=uv; choose_python; echo "$BASE"').stdout.endswith("/python3.12\n")


def test_without_any_python_the_fix_is_named(machine):
    result = machine.install()
    assert result.returncode == 1
    assert "no Python from 3.11 to 3.14 was found" in result.stderr
    assert "python3-venv" in result.stderr
    assert "Traceback" not in result.stdout + result.stderr


NO_DRIVER = pytest.mark.skipif(
    any(Path(p).exists() for p in ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/opt/rocm")),
    reason="this machine has a GPU's driver",
)


@NO_DRIVER
@pytest.mark.parametrize(
    ("name", "script", "kind"),
    [
        ("nvidia-smi", "echo 'GPU 0: NVIDIA H200 (UUID: GPU-1)'", "nvidia"),
        ("nvidia-smi", "echo 'No devices were found'; exit 6", "cpu"),
        ("ldconfig", "echo '  libnvidia-ml.so.1 (libc6,x86-64) => /usr/lib/libnvidia-ml.so.1'", "nvidia"),
        ("ldconfig", "echo '  libc.so.6 (libc6,x86-64) => /lib/libc.so.6'", "cpu"),
        ("amd-smi", "", "rocm"),
        ("rocminfo", "", "rocm"),
    ],
)
def test_the_kind_of_gpu_is_found(machine, name, script, kind):
    machine.program("ldconfig", "")
    machine.program(name, script)
    assert machine.functions("gpu_kind").stdout == f"{kind}\n"


def test_uv_chooses_torchs_build_unless_the_user_or_a_folder_of_wheels_does(machine, tmp_path):
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    code = 'torch_flags; echo "${TORCH_FLAGS[*]}"'
    assert machine.functions(f"GPU=cpu; {code}").stdout == "--torch-backend=auto\n"
    assert machine.functions(f"GPU=cpu; {code}", UV_TORCH_BACKEND="cpu").stdout == "\n"
    assert machine.functions(f"GPU=cpu; {code}", UV_FIND_LINKS=f"/nowhere,{wheels}").stdout == "--torch-backend=auto\n"
    (wheels / "torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl").touch()
    assert machine.functions(f"GPU=cpu; {code}", UV_FIND_LINKS=f"/nowhere,{wheels}").stdout == "\n"
    assert machine.functions(f"GPU=nvidia; {code}", UV_FIND_LINKS=str(wheels)).stdout == "--torch-backend=auto\n"


@pytest.mark.parametrize(
    ("gpu", "build", "installer"),
    [
        ("cpu", "2.13.0+cpu", "pip"),
        ("cpu", "2.13.0", "uv"),
        ("nvidia", "2.13.0+cu130", "pip"),
        ("nvidia", "2.13.0+cpu", "uv"),
        ("nvidia", "2.13.0", "uv"),
        ("rocm", "2.13.0+rocm7.2", "pip"),
        ("rocm", "2.13.0", "uv"),
        ("rocm", None, "pip"),
    ],
)
def test_uv_is_fetched_where_pips_torch_is_not_for_this_machine(machine, gpu, build, installer):
    python = machine.checkout / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    would = (
        f"Would install filelock-3.0 torch-{build} torchfoo-1.0" if build else "Requirement already satisfied: torch"
    )
    python.write_text(
        f"""#!/bin/sh
        case "$*" in
          *--dry-run*) echo "{would}" ;;
          *--target*) for into; do case $into in */uv) break ;; esac; done
            mkdir -p "$into/bin" && printf '#!/bin/sh\n' >"$into/bin/uv" && chmod +x "$into/bin/uv" ;;
        esac
        """
    )
    python.chmod(0o755)
    code = 'EXTRAS=train CONSTRAINTS=c REQUIREMENTS=(); choose_installer >/dev/null; echo "${UV:+uv}"'
    result = machine.functions(f"GPU={gpu} {code}")
    assert (result.stdout.strip() or "pip") == installer, result.stderr


@pytest.mark.parametrize(
    ("log", "code", "said"),
    [
        ("ERROR: Could not install packages: [Errno 28] No space left on device", 1, "the disk is full"),
        ("Failed to establish a new connection: [Errno -3]\nERROR: No matching distribution", 1, "cannot be reached"),
        ("error: Failed to fetch: `x`\n  Caused by: dns error", 2, "cannot be reached"),
        ("SSLError: CERTIFICATE_VERIFY_FAILED", 1, "certificate is not trusted"),
        ("ERROR: [Errno 13] Permission denied: '/x'", 1, "[Errno 13] Permission denied: '/x'"),
        ("Collecting torch", 137, "killed"),
        ("ERROR: Cannot install a and b\nERROR: ResolutionImpossible: see", 1, "no versions fit together"),
        ("something\nerror: metadata-generation-failed", 1, "error: metadata-generation-failed"),
        ("the last words", 1, "the last words"),
    ],
)
def test_a_failure_is_one_sentence_with_a_fix_and_the_log(machine, log, code, said):
    venv = machine.checkout / ".venv"
    venv.mkdir()
    # What an earlier command wrote explains nothing.
    (machine.root / "log").write_text(f"{log}\n")
    old = "run before sh -c 'echo no space left on device; echo certificate'; "
    result = machine.functions(f"{old} run installing sh -c 'cat log; exit {code}'")
    assert result.returncode == 1
    what, fix, where = result.stderr.splitlines()
    assert what.startswith("install.sh: installing failed: ")
    assert said in what
    assert fix.startswith("  fix: ")
    assert where == f"  log: {venv}/install.log"


def test_a_folder_that_is_no_environment_is_not_touched(machine):
    machine.python("python3.11", (3, 11))
    (machine.checkout / ".venv").mkdir()
    precious = machine.checkout / ".venv" / "thesis.txt"
    precious.write_text("precious")
    result = machine.install()
    assert result.returncode == 1
    assert "is not a Python environment" in result.stderr
    assert precious.read_text() == "precious"


def test_an_environment_that_was_moved_is_known_as_such(machine):
    made = machine.root / "elsewhere" / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", made], check=True)
    assert machine.functions(f"VENV={made} PYTHON={made}/bin/python; venv_runs && echo yes").stdout == "yes\n"
    moved = machine.root / "moved" / ".venv"
    moved.parent.mkdir()
    made.rename(moved)
    assert machine.functions(f"VENV={moved} PYTHON={moved}/bin/python; venv_runs || echo no").stdout == "no\n"


LINK = 'verb=install; link_ftui; echo "$COMMAND"'


def test_the_link_is_made_and_what_to_type_is_told(machine):
    target = f"{machine.checkout}/.venv/bin/ftui"
    result = machine.functions(LINK)
    assert os.readlink(machine.links / "ftui") == target
    assert "is not on your PATH" in result.stdout
    assert result.stdout.splitlines()[-1] == target.replace(" ", "\\ ")
    assert machine.functions(LINK, PATH=f"{machine.links}:{machine.bin}").stdout.endswith("ftui\n")


def test_a_link_to_another_checkout_is_moved_here_and_said(machine):
    machine.links.mkdir()
    (machine.links / "ftui").symlink_to("/gone/checkout/.venv/bin/ftui")
    result = machine.functions(LINK)
    assert "pointed to /gone/checkout/.venv/bin/ftui" in result.stdout
    assert os.readlink(machine.links / "ftui") == f"{machine.checkout}/.venv/bin/ftui"


@pytest.mark.parametrize("kind", ["file", "link"])
def test_another_program_of_that_name_is_left_alone(machine, kind):
    machine.links.mkdir()
    theirs = machine.links / "ftui"
    if kind == "file":
        theirs.write_text("theirs")
    else:
        theirs.symlink_to(machine.bin / "cat")
    result = machine.functions(LINK)
    assert "another program and was left alone" in result.stdout
    assert theirs.read_bytes() == (b"theirs" if kind == "file" else (machine.bin / "cat").read_bytes())


@pytest.mark.parametrize(
    "words", [["instal"], ["--from"], ["--python"], ["--nonsense"], ["install", "extra"]], ids=" ".join
)
def test_wrong_words_end_with_code_2_and_a_fix(machine, words):
    result = machine.install(*words)
    assert result.returncode == 2
    assert "fix: " in result.stderr
    assert not (machine.checkout / ".venv").exists()


def test_help_names_every_verb_and_changes_nothing(machine):
    result = machine.install("--help")
    assert result.returncode == 0
    for word in ("install", "demo", "doctor", "test", "--python", "--from", "FTUI_PYTHON"):
        assert word in result.stdout
    assert not (machine.checkout / ".venv").exists()


def test_installing_again_does_nothing_and_works_through_a_link_from_elsewhere(machine):
    """The environment that runs these tests stands in for the installed one: nothing may be written to it."""
    venv = machine.checkout / ".venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "activate").write_text(f"VIRTUAL_ENV='{venv}'\n")
    (venv / "bin" / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (venv / "bin" / "ftui").write_text('#!/bin/sh\necho "ftui: $*"\n')
    for name in ("python", "ftui"):
        (venv / "bin" / name).chmod(0o755)
    inputs = machine.functions(
        'cat "$ROOT/pyproject.toml" "$ROOT/constraints.txt" | sha256sum | cut -c1-16'
    ).stdout.strip()
    (venv / "ftui-installed").write_text(f"{inputs} train \n")
    before = {path: path.stat().st_mtime_ns for path in machine.checkout.rglob("*")}
    link = machine.root / "setup"
    link.symlink_to(machine.checkout / "install.sh")
    result = subprocess.run([link], env=machine.env, capture_output=True, text=True, timeout=60, cwd="/")
    assert result.returncode == 0, result.stderr
    assert "ftui is ready" in result.stdout
    assert {path: path.stat().st_mtime_ns for path in machine.checkout.rglob("*")} == before
    # A verb hands over to ftui, and stdout is ftui's alone.
    assert machine.install("demo", "--json", "--steps", "3").stdout == "ftui: demo --json --steps 3\n"


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_fresh_clone_installs_itself_twice_and_after_a_kill(tmp_path):
    clone = tmp_path / "a clone"
    subprocess.run(["git", "clone", "-q", ROOT, clone], check=True)
    env = os.environ | {"FTUI_BIN_DIR": str(tmp_path / "bin")}
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run([clone / "install.sh"], env=env, timeout=15)
    for _ in range(2):
        result = subprocess.run([clone / "install.sh"], env=env, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
    assert "setting up" not in result.stdout
    ftui = subprocess.run([tmp_path / "bin" / "ftui", "--help"], env=env, capture_output=True, text=True, check=True)
    assert "usage: ftui" in ftui.stdout
