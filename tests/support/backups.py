"""Servers to back up to, and runs worth a backup."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engine.backup.backup import Pass
from engine.backup.jobs import Limits
from engine.backup.ledger import Ledger
from engine.backup.policy import parse
from engine.backup.rclone import Daemon, binary
from engine.checkpoint.manifest import seal
from engine.files import write_json
from engine.workspace import RunFolder, Workspace
from tests.support.fault_proxy import free_port, wait_for_port

KEY, SECRET = "AKIAFTUITESTKEY00000", "PLANTED-sEcReT-0123456789abcdefPLANTED"
MIB = 1 << 20


@contextmanager
def process(argv: list[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A server, ended with the block."""
    started = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options)
    try:
        yield started
    finally:
        started.kill()
        started.wait()


@contextmanager
def moto() -> Iterator[int]:
    """An S3 server with the ETags of the real one, in this process; its port. It forgets everything at its end."""
    import logging

    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=free_port(), verbose=False)
    server.start()
    try:
        yield server._port
    finally:
        server.stop()


def stored(bucket: str, key: str) -> Any:
    """The object as moto keeps it: its content can be changed without the server noticing."""
    from moto.backends import get_backend

    return get_backend("s3")["123456789012"]["aws"].buckets[bucket].keys[key]


def rot(bucket: str, key: str) -> None:
    """Flip one byte of an object; its ETag stays."""
    found = stored(bucket, key)
    assert found.etag
    data = bytearray(found.value)
    data[len(data) // 2] ^= 1
    found._value_buffer.seek(0)
    found._value_buffer.write(bytes(data))


@contextmanager
def serve_s3(folder: Path, key: str = KEY, secret: str = SECRET) -> Iterator[int]:
    """rclone's own S3 server over a folder: it checks signatures; its port."""
    port = free_port()
    env = {**os.environ, "RCLONE_AUTH_KEY": f'"{key},{secret}"'}
    argv = [binary(), "serve", "s3", str(folder), "--addr", f"127.0.0.1:{port}", "--vfs-cache-mode", "off"]
    with process([*argv, "--config", os.devnull], env=env) as server:
        wait_for_port(port, server)
        yield port


def conf(path: Path, **ports: int) -> Path:
    """An rclone.conf with an S3 remote for each name and port."""
    lines = []
    for name, port in ports.items():
        lines += [
            f"[{name}]",
            "type = s3",
            "provider = Other",
            f"access_key_id = {KEY}",
            f"secret_access_key = {SECRET}",
        ]
        lines += [f"endpoint = http://127.0.0.1:{port}", "region = us-east-1", "force_path_style = true", ""]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines))
    path.chmod(0o600)
    return path


def client(port: int) -> Any:
    """A boto3 client for a server of ours."""
    import boto3

    return boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{port}",
        aws_access_key_id=KEY,
        aws_secret_access_key=SECRET,
        region_name="us-east-1",
    )


def make_run(
    home: Path, name: str = "demo", *, steps: tuple[int, ...] = (20, 40), size: int = 0, **recipe: Any
) -> RunFolder:
    """A run that stopped: sealed checkpoints whose optimizer has `size` random bytes, a journal, data, a dataset."""
    run = RunFolder(Workspace(home).prepare().runs_dir / name)
    for folder in (run.logs, run.data, run.checkpoints):
        folder.mkdir(parents=True)
    dataset = home / "train.jsonl"
    dataset.write_text('{"text": "a"}\n' * 20)
    run.recipe.write_text(f"method: lora\ndataset_path: {dataset}\n")
    known = {"method": "lora", "model_name_or_path": "org/base", "model_revision": "abc", "dataset_path": str(dataset)}
    write_json(run.resolved, {"format": 1, "run": name, "recipe": {**known, **recipe}, "origin": {}, "overrides": []})
    (run.data / "train").mkdir()
    (run.data / "train" / "data-00000.arrow").write_bytes(b"rows")
    write_json(run.data / "data.json", {"format": 1, "sources": [{"path": str(dataset), "bytes": 280, "sha256": "x"}]})
    last = steps[-1] if steps else 0
    journal = [
        f'{{"event":"log","attempt":1,"time":{s}.0,"step":{s},"loss":1.0,"step_time_s":2.0}}\n'
        for s in range(last + 10)
    ]
    run.journal.write_text("".join(journal))
    run.events.write_text('{"event":"created","time":1.0}\n')
    for step in steps:
        add_checkpoint(run, step, size=size, best=steps[0])
    state = {
        "format": 1,
        "run": name,
        "state": "stopped",
        "step": last + 9,
        "max_steps": 100,
        "attempt": 1,
        "path": str(run.path),
    }
    write_json(
        run.state, {**state, "created": 1.0, "gpus": [], "last_checkpoint": {"step": last, "path": "x", "time": 1.0}}
    )
    return run


def add_checkpoint(run: RunFolder, step: int, *, size: int = 0, best: int | None = None) -> Path:
    """Seal one more checkpoint."""
    staging = run.checkpoints / f".staging-{step}"
    staging.mkdir()
    (staging / "optimizer.pt").write_bytes(os.urandom(size or 5000))
    (staging / "adapter_model.safetensors").write_bytes(os.urandom(70_000))
    (staging / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    for name in ("scheduler.pt", "rng_state.pth"):
        (staging / name).write_text(name)
    write_json(staging / "trainer_state.json", {"best_model_checkpoint": f"x/checkpoint-{best or step}", "step": step})
    final = run.checkpoints / f"checkpoint-{step}"
    seal(staging, final, {"step": step, "world_size": 1, "attempt": 1})
    return final


def finish(run: RunFolder) -> None:
    """Make the run one that is done, with a final adapter that equals its last checkpoint's."""
    newest = max(run.checkpoints.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    run.final.mkdir()
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        (run.final / name).write_bytes((newest / name).read_bytes())
    state = run.read_state()
    write_json(run.state, {**state, "format": 1, "state": "done", "step": state["max_steps"]})


def back_up(run: RunFolder, daemon: Daemon, remote: Any, limits: Limits | None = None, **options: Any) -> Any:
    """One pass; the outcome."""
    policy = parse(remote)
    assert policy is not None
    workspace = Workspace(run.path.parents[1])
    return Pass(workspace, run, policy, daemon, limits=limits, **options).go()


def ledger(run: RunFolder, remote: str, *, write: bool = False) -> Ledger:
    """The ledger of a run and a remote."""
    return Ledger(run.path / "backup", remote, write=write)


def states(run: RunFolder, remote: str) -> dict[str, str]:
    """The state of every item."""
    return {name: item.state for name, item in ledger(run, remote).items.items()}
