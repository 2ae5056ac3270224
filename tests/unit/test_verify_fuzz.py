"""Files with bytes changed, cut and moved at random: always an answer, never an exception, nothing run or written."""

from __future__ import annotations

import random
import resource
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from engine.checkpoint import verify
from tests.support.checkpoints import adapter, floats, pickled, safetensors, torch_zip, write_checkpoint

CASES = Path(__file__).parents[1] / "cases" / "ckpt"
SOURCES = ["06-fsdp/run/checkpoint-20", "12-index/run/checkpoint-10", "10-manifest/run/checkpoint-10"]
STATES = {"complete", "broken", "staging", "foreign"}


def damaged(data: bytes, chance: random.Random) -> bytes:
    content = bytearray(data)
    for _n in range(chance.randint(1, 4)):
        at = chance.randrange(len(content) + 1)
        match chance.randrange(4):
            case 0:
                del content[at : at + chance.choice([1, 8, 1000])]
            case 1:
                content[at:at] = chance.randbytes(chance.choice([1, 8, 64]))
            case 2 if content:
                content[at % len(content)] ^= 1 << chance.randrange(8)
            case _:
                content[at : at + 8] = struct.pack("<Q", chance.choice([0, 2**31, 2**63, 2**64 - 1]))
    return bytes(content)


@pytest.mark.parametrize("source", SOURCES)
def test_random_damage(source, tmp_path):
    chance = random.Random(source)
    folder = tmp_path / "checkpoint-20"
    shutil.copytree(CASES / source, folder)
    names = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    originals = {path: path.read_bytes() for path in names}
    for _round in range(60):
        touched = chance.sample(names, chance.randint(1, 3))
        for path in touched:
            path.write_bytes(damaged(originals[path], chance))
        report = verify.verify(tmp_path)
        assert {entry.state for entry in report.checkpoints} <= STATES
        assert len(str(report.to_json())) < 65_536
        for path in touched:
            path.write_bytes(originals[path])


def test_no_pickle_is_run(tmp_path):
    """Every way in which a pickle can call something, in every file that may hold one."""
    canary = tmp_path / "canary"
    call = f"(S'{canary}'\ntR."
    payloads = [
        f"cos\nmkdir\n{call}".encode(),
        b"\x80\x04\x8c\x02os\x8c\x05mkdir\x93" + call.encode(),
        f"(ios\nmkdir\nS'{canary}'\n.".encode(),
        f"cbuiltins\n__import__\n(S'os'\ntR(S'mkdir'\nS'{canary}'\nd.".encode(),
        f"ccollections\nOrderedDict\n)R(S'x'\ncos\nmkdir\n(S'{canary}'\ntRu.".encode(),
    ]
    for number, payload in enumerate(payloads, 1):
        folder = write_checkpoint(tmp_path / "run" / f"checkpoint-{number}", number)
        for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"):
            (folder / name).write_bytes(torch_zip(payload))
        (folder / "optimizer_0").mkdir()
        (folder / "optimizer_0" / ".metadata").write_bytes(payload)
        (folder / "adapter_model.bin").write_bytes(payload)
    report = verify.verify(tmp_path / "run")
    assert not canary.exists()
    assert all("unsafe_pickle" in {f.kind for f in entry.findings} for entry in report.checkpoints)
    assert report.exit_code == 4


def test_numbers_are_seen_wherever_they_lie(tmp_path):
    """A NaN in any place of a tensor that begins at an odd byte and spans several pieces."""
    chance = random.Random(7)
    for step in range(2, 8):
        folder = write_checkpoint(tmp_path / f"checkpoint-{step}", step)
        numbers = bytearray(floats(1.0) * 700_000)
        at = chance.randrange(700_000) * 4
        numbers[at : at + 4] = floats(float("nan"))
        tensors = {**adapter(), "odd": ("U8", [3], b"abc"), "big": ("F32", [700_000], bytes(numbers))}
        (folder / "adapter_model.safetensors").write_bytes(safetensors(tensors))
    checked = verify.verify(tmp_path).checkpoints
    assert all([f.kind for f in entry.findings] == ["non_finite_weights"] for entry in checked)


def test_memory_stays_small(tmp_path):
    """Hostile sizes everywhere, and a file larger than what the process may take."""
    folder = write_checkpoint(tmp_path / "checkpoint-20", 20)
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", 49_000_000) + b"{" + bytes(1000))
    (folder / "scheduler.pt").write_bytes(torch_zip(b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b"x."))
    (folder / "rng_state.pth").write_bytes(torch_zip(b"\x80\x02}r\xff\xff\xff\x7f."))
    with open(folder / "optimizer.pt", "wb") as file:
        file.write(torch_zip(pickled({})))
        file.truncate(2**31)
    limit = 400 * 1024 * 1024
    code = "import sys, pathlib, engine.checkpoint.verify as v; print(v.verify(pathlib.Path(sys.argv[1])).exit_code)"
    found = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)),
        env={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stdout.strip() == "4", found.stderr[-500:]


def test_an_interrupt_ends_it_at_once(tmp_path):
    """The other threads must not read on to the end of a large file."""
    folder = write_checkpoint(tmp_path / "checkpoint-20", 20)
    header = b'{"x":{"dtype":"F32","shape":[4294967296],"data_offsets":[0,17179869184]}}'
    for name in ("adapter_model.safetensors", "model.safetensors"):
        with open(folder / name, "wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            file.truncate(8 + len(header) + 2**34)  # sixteen gigabytes that take no room
    seen: list[int] = []

    def interrupt(done: int, _total: int) -> None:
        seen.append(done)
        if len(seen) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        verify.verify(tmp_path, progress=interrupt)
    assert max(seen) < 2**31
