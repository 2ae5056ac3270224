"""Backups against servers on loopback: sent, proved, damaged, lost, refused, overloaded, killed, and restored."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.backup import backup, check, restore
from engine.backup.jobs import AuthNeeded, Limits
from engine.backup.rclone import Daemon, RcloneError, binary
from engine.backup.remote import Remote
from engine.checkpoint import retention
from engine.errors import DoesNotFit, FtuiError, GateError
from engine.journal import read_all
from engine.recipe.backup import parse
from engine.workspace import RunFolder, Workspace
from tests.support import backups
from tests.support.backups import MIB, back_up, make_run, states
from tests.support.fault_proxy import FaultProxy

BUCKET = "ftui-test"
BIG = 17 * MIB + 5  # two parts
CHECKPOINT = "checkpoints/checkpoint-40"


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with backups.moto() as found:
        backups.client(found).create_bucket(Bucket=BUCKET)
        yield found


@pytest.fixture
def remote(port: int, house: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """A folder of its own on the server; RCLONE_CONFIG names the remote."""
    monkeypatch.setenv("RCLONE_CONFIG", str(backups.conf(house / "conf" / "rclone.conf", s3=port)))
    return f"s3:{BUCKET}/{request.node.name}"


@pytest.fixture
def daemon(remote: str) -> Iterator[Daemon]:
    with Daemon(Path(os.environ["RCLONE_CONFIG"])) as started:
        yield started


@pytest.fixture
def through(port: int, house: Path, monkeypatch: pytest.MonkeyPatch, remote: str) -> Iterator[FaultProxy]:
    """The same remote through a proxy that can misbehave; the config names the proxy."""
    with FaultProxy(port) as proxy:
        backups.conf(house / "conf" / "rclone.conf", s3=proxy.port)
        yield proxy


def key_of(remote: str, path: str, run: str = "demo") -> str:
    return f"{remote.partition('/')[2]}/{run}/{path}"


def verified(run: RunFolder, daemon: Daemon, remote: str, *, full: bool = False) -> tuple[dict[str, Any], list[str]]:
    policy = parse(remote)
    assert policy is not None
    opened = backups.ledger(run, remote, write=True)
    try:
        return check.check(run, policy, Remote(daemon, policy.to(run.name)), opened, full=full)
    finally:
        opened.close()


def ftui(*words: str) -> tuple[int, Any]:
    done = subprocess.run([str(Path(binary()).with_name("ftui")), *words, "--json"], capture_output=True, text=True)
    return done.returncode, json.loads(done.stdout)


def test_sent_proved_and_not_sent_again(house: Path, remote: str, daemon: Daemon, port: int) -> None:
    run = make_run(house / "ft", size=BIG)
    outcome = back_up(run, daemon, remote)
    assert outcome.ok and outcome.sent_bytes > 2 * BIG
    assert set(states(run, remote).values()) == {"VERIFIED_ETAG"}
    client = backups.client(port)
    tag = client.head_object(Bucket=BUCKET, Key=key_of(remote, f"{CHECKPOINT}/optimizer.pt"))["ETag"]
    assert tag.endswith('-2"')
    keys = [entry["Key"] for entry in client.list_objects_v2(Bucket=BUCKET, Prefix=key_of(remote, ""))["Contents"]]
    names = {key.partition("/demo/")[2] for key in keys}
    assert {"recipe.yaml", "journal.jsonl", "BACKUP.json", "named/train.jsonl", "data/train/data-00000.arrow"} <= names
    assert f"{CHECKPOINT}/MANIFEST.json" in names and not any(".tmp" in name or "staging" in name for name in names)
    before = len(read_all(backups.ledger(run, remote).path))
    again = back_up(run, daemon, remote)
    assert again.ok and again.sent_bytes == 0
    assert len(read_all(backups.ledger(run, remote).path)) == before, "a pass with nothing to do writes nothing"


def test_the_manifest_goes_up_last_and_adapters_before_states(house: Path, remote: str, daemon: Daemon) -> None:
    run = make_run(house / "ft", size=2 * MIB)
    back_up(run, daemon, remote)
    sent = [f"{e['item']}/{e['file']}" for e in read_all(backups.ledger(run, remote).path) if e["event"] == "sending"]
    for step in (20, 40):
        of_step = [name for name in sent if f"checkpoint-{step}/" in name]
        assert of_step[-1].endswith("MANIFEST.json")
    adapters = [n for n, name in enumerate(sent) if name.endswith("adapter_model.safetensors")]
    assert max(adapters) < min(n for n, name in enumerate(sent) if name.endswith("optimizer.pt"))


def test_a_corrupt_object_with_intact_metadata(house: Path, remote: str, daemon: Daemon, port: int) -> None:
    """rclone's own check calls it right; ours does not."""
    run = make_run(house / "ft", size=BIG)
    back_up(run, daemon, remote)
    client, name = backups.client(port), key_of(remote, f"{CHECKPOINT}/optimizer.pt")
    original = (run.checkpoints / "checkpoint-40" / "optimizer.pt").read_bytes()
    import base64
    import hashlib

    lie = {"md5chksum": base64.b64encode(hashlib.md5(original).digest()).decode()}
    known = client.head_object(Bucket=BUCKET, Key=name)["Metadata"] | lie
    upload = client.create_multipart_upload(Bucket=BUCKET, Key=name, Metadata=known)["UploadId"]
    parts = []
    for number, start in enumerate(range(0, len(original), 16 * MIB), 1):
        data = bytearray(original[start : start + 16 * MIB])
        data[1] ^= 1
        part = client.upload_part(Bucket=BUCKET, Key=name, UploadId=upload, PartNumber=number, Body=bytes(data))
        parts.append({"ETag": part["ETag"], "PartNumber": number})
    client.complete_multipart_upload(Bucket=BUCKET, Key=name, UploadId=upload, MultipartUpload={"Parts": parts})
    folder = run.checkpoints / "checkpoint-40"
    plain = [binary(), "check", str(folder), f"{remote}/demo/{CHECKPOINT}", "--include", "optimizer.pt"]
    assert subprocess.run(plain, capture_output=True).returncode == 0, "the trap: rclone is content"
    findings, _absent = verified(run, daemon, remote)
    assert [(f["file"], f["found_by"]) for f in findings[CHECKPOINT]] == [("optimizer.pt", "etag")]
    assert states(run, remote)[CHECKPOINT] == "FAILED"
    assert back_up(run, daemon, remote).ok, "it is sent again"
    assert verified(run, daemon, remote) == ({}, [])


def test_rot_after_verification_needs_the_full_check(house: Path, remote: str, daemon: Daemon) -> None:
    run = make_run(house / "ft", size=BIG)
    back_up(run, daemon, remote)
    backups.rot(BUCKET, key_of(remote, f"{CHECKPOINT}/optimizer.pt"))
    assert verified(run, daemon, remote) == ({}, []), "the server does not know"
    findings, _absent = verified(run, daemon, remote, full=True)
    assert [finding["file"] for finding in findings[CHECKPOINT]] == ["optimizer.pt"]


def test_what_is_missing_there_is_found_and_sent_again(house: Path, remote: str, daemon: Daemon, port: int) -> None:
    run = make_run(house / "ft")
    back_up(run, daemon, remote)
    backups.client(port).delete_object(Bucket=BUCKET, Key=key_of(remote, f"{CHECKPOINT}/scheduler.pt"))
    code, document = ftui("backup", "verify", "demo", "--remote", remote)
    row = next(row for row in document["checkpoints"] if row["step"] == 40)
    assert code == 4 and [f["kind"] for f in row["findings"]][-1] == "backup_missing"
    assert document["at_risk"] == {"steps": 29, "seconds": 58.0, "step": 20, "money": None}
    with pytest.raises(GateError, match="missing"):
        restore.restore(Workspace(house / "ft"), daemon, f"{remote}/demo", house / "back")
    assert not (house / "back").exists(), "no half of a run under its name"
    outcome = back_up(run, daemon, remote)
    assert outcome.ok and outcome.sent_bytes < 1000
    restore.restore(Workspace(house / "ft"), daemon, f"{remote}/demo", house / "back")
    assert (house / "back" / CHECKPOINT / "scheduler.pt").read_text() == "scheduler.pt"


def test_restored_runs_equal_the_original(house: Path, remote: str, daemon: Daemon) -> None:
    run = make_run(house / "ft", size=BIG)
    backups.finish(run)
    assert back_up(run, daemon, remote).ok
    other = Workspace(house / "other")
    code, document = ftui("--home", str(other.root), "backup", "restore", f"{remote}/demo")
    assert code == 0 and document["checkpoints"] == [20, 40] and document["others"] == ["final"]
    assert document["base_model"]["name"] == "org/base" and document["base_model"]["revision"] == "abc"
    back = other.find("demo")
    for folder in ("checkpoints", "final", "data"):
        assert not subprocess.run(["diff", "-r", run.path / folder, back.path / folder]).returncode
    assert back.journal.read_bytes() == run.journal.read_bytes()
    state = back.read_state()
    assert (state["state"], state["path"]) == ("done", str(back.path))
    shutil.rmtree(other.root)
    assert ftui("backup", "restore", f"{remote}/demo/{CHECKPOINT}", str(house / "one"))[0] == 0
    assert not subprocess.run(["diff", "-r", run.checkpoints / "checkpoint-40", house / "one"]).returncode
    assert ftui("backup", "restore", f"{remote}/demo", str(house / "one"))[0] == 2, "nothing is overwritten"
    assert ftui("backup", "restore", f"{remote}/nothing", str(house / "two"))[0] == 4


def test_a_restore_goes_on_and_checks_what_is_there(
    house: Path, remote: str, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(house / "ft", size=BIG)
    back_up(run, daemon, remote)
    target = house / "back"
    building = house / ".restore-back"
    (building / CHECKPOINT).mkdir(parents=True)
    shutil.copy(run.checkpoints / "checkpoint-40" / "optimizer.pt", building / CHECKPOINT)
    (building / CHECKPOINT / "scheduler.pt").write_text("SCHEDULER.PT")  # of the right size, and wrong
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _path: shutil._ntuple_diskusage(10**9, 10**9, 10**6))
        with pytest.raises(DoesNotFit):
            restore.restore(Workspace(house / "ft"), daemon, f"{remote}/demo", target)
    done = restore.restore(Workspace(house / "ft"), daemon, f"{remote}/demo", target, step=40)
    assert done["fetched_bytes"] < BIG and done["checkpoints"] == [40]
    assert (target / CHECKPOINT / "scheduler.pt").read_text() == "scheduler.pt"


def test_a_changed_source_is_never_called_safe(house: Path, remote: str, daemon: Daemon) -> None:
    run = make_run(house / "ft", size=MIB)
    damaged = run.checkpoints / "checkpoint-40" / "optimizer.pt"
    with open(damaged, "r+b") as file:  # the same size, after the seal
        file.write(b"XXXX")
    outcome = back_up(run, daemon, remote)
    assert not outcome.ok and "optimizer.pt" in outcome.problems[0]
    assert states(run, remote)[CHECKPOINT] == "SOURCE_CHANGED"
    assert states(run, remote)["checkpoints/checkpoint-20"] == "VERIFIED_ETAG"
    assert retention.protected(run.path / "backup") == {"checkpoint-40"}


def test_a_write_during_the_upload_is_noticed(house: Path, through: FaultProxy, daemon: Daemon, remote: str) -> None:
    run = make_run(house / "ft", steps=(40,), size=BIG)
    through.rate = 8e6
    source = run.checkpoints / "checkpoint-40" / "optimizer.pt"

    def write(progress: Any) -> None:
        if progress.in_flight > MIB and not done:
            done.append(1)
            with open(source, "r+b") as file:
                file.seek(BIG - 10)
                file.write(b"Y")

    done: list[int] = []
    outcome = back_up(run, daemon, remote, on_progress=write)
    assert done and not outcome.ok
    assert states(run, remote)[CHECKPOINT] == "SOURCE_CHANGED"


def test_wanted_checkpoints_are_protected_until_they_are_proved(
    house: Path, through: FaultProxy, daemon: Daemon, remote: str
) -> None:
    run = make_run(house / "ft")
    through.mode = "503"
    with pytest.raises(FtuiError):
        back_up(run, daemon, remote, Limits(stall_s=0.5, give_up_s=1.0))
    assert retention.protected(run.path / "backup") == {"checkpoint-20", "checkpoint-40"}
    through.mode = "ok"
    assert back_up(run, daemon, remote).ok
    assert retention.protected(run.path / "backup") == set()


def test_an_overloaded_server_shows_as_stalled_and_is_waited_for(
    house: Path, through: FaultProxy, daemon: Daemon, remote: str
) -> None:
    run = make_run(house / "ft", steps=(40,), size=BIG)
    through.rate = 10e6
    seen: list[str] = []

    def look(progress: Any) -> None:
        if progress.in_flight > MIB and not seen:
            seen.append("moving")
            through.mode = "503"
        if progress.state == "STALLED" and through.requests_refused and seen[-1] != "STALLED":
            seen.append("STALLED")
            assert states(run, remote)[CHECKPOINT] == "STALLED"
            through.rate, through.mode = None, "ok"

    outcome = back_up(run, daemon, remote, Limits(stall_s=1.0, renew_s=3.0), on_progress=look)
    assert seen == ["moving", "STALLED"] and through.requests_refused
    assert outcome.ok and set(states(run, remote).values()) == {"VERIFIED_ETAG"}


def test_network_loss_costs_no_more_than_what_was_in_flight(
    house: Path, through: FaultProxy, daemon: Daemon, remote: str
) -> None:
    run = make_run(house / "ft", steps=(20, 40), size=BIG)
    through.rate = 20e6
    lost: list[float] = []

    def look(progress: Any) -> None:
        if progress.done > BIG and not lost:
            lost.append(time.monotonic())
            through.mode = "drop"
            threading.Timer(1.0, lambda: setattr(through, "mode", "ok")).start()
        assert progress.through <= progress.total

    outcome = back_up(run, daemon, remote, on_progress=look)
    total = sum(path.stat().st_size for path in run.checkpoints.rglob("*") if path.is_file())
    assert lost and outcome.ok
    assert through.sent_up < total + 1.2 * BIG + 2 * MIB


def test_refused_credentials_are_named_and_wait_for_new_ones(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(house / "ft", steps=(40,))
    (house / "srv" / BUCKET).mkdir(parents=True)
    monkeypatch.setenv("RCLONE_CONFIG", str(house / "rclone.conf"))
    with backups.serve_s3(house / "srv") as port:
        good = backups.conf(house / "rclone.conf", s3=port).read_text()
        (house / "rclone.conf").write_text(good.replace(backups.SECRET, "x" * 30))
        with Daemon(house / "rclone.conf") as daemon, pytest.raises(AuthNeeded, match="SignatureDoesNotMatch"):
            back_up(run, daemon, f"s3:{BUCKET}")
        assert states(run, f"s3:{BUCKET}")[CHECKPOINT] == "AUTH_NEEDED"
        (house / "rclone.conf").write_text(good)
        with Daemon(house / "rclone.conf") as daemon:
            assert back_up(run, daemon, f"s3:{BUCKET}").ok
            with pytest.raises(RcloneError) as caught:
                back_up(run, daemon, "s3:no-such-bucket")
        assert caught.value.cause == "no_bucket" or "NoSuchBucket" in caught.value.text


def test_rclone_killed_in_the_middle(house: Path, through: FaultProxy, daemon: Daemon, remote: str, port: int) -> None:
    run = make_run(house / "ft", steps=(20, 40), size=BIG)
    through.rate = 30e6
    killed: list[int] = []

    def look(progress: Any) -> None:
        if progress.in_flight > 2 * MIB and len(killed) < 2 and daemon.pid not in killed:
            assert daemon.pid is not None
            killed.append(daemon.pid)
            os.kill(daemon.pid, signal.SIGKILL)

    outcome = back_up(run, daemon, remote, on_progress=look)
    assert len(killed) == 2 and outcome.ok
    assert verified(run, daemon, remote, full=True) == ({}, [])
    left = backups.client(port).list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])
    assert not [upload for upload in left if upload["Key"].startswith(key_of(remote, ""))], "orphans are cleaned up"


def test_what_is_there_already_is_copied_there(house: Path, remote: str, daemon: Daemon) -> None:
    run = make_run(house / "ft")
    assert back_up(run, daemon, remote).ok
    backups.finish(run)
    outcome = back_up(run, daemon, remote)
    events = read_all(backups.ledger(run, remote).path)
    how = {e["file"]: e["how"] for e in events if e["event"] == "uploaded" and e["item"] == "final"}
    assert outcome.ok and how["adapter_model.safetensors"] == "copied"
    assert states(run, remote)["final"] == "VERIFIED_ETAG"
    assert ftui("backup", "status", "demo", "--remote", remote)[1]["at_risk"]["steps"] == 0


def test_a_lost_ledger_is_made_again_from_the_remote(house: Path, remote: str, daemon: Daemon) -> None:
    run = make_run(house / "ft", size=BIG)
    back_up(run, daemon, remote)
    backups.ledger(run, remote).path.unlink()
    outcome = back_up(run, daemon, remote)
    assert outcome.ok and outcome.sent_bytes < BIG


def test_one_writer(house: Path, remote: str, daemon: Daemon) -> None:
    run = make_run(house / "ft")
    lock = backup.run_lock(run)
    assert lock.acquire()
    code, document = ftui("backup", "verify", "demo", "--remote", remote)
    assert code == 1 and document["error"]["kind"] == "backup_running"
    lock.release()


def test_prune_keeps_the_model_and_the_reports(house: Path, remote: str, daemon: Daemon, port: int) -> None:
    run = make_run(house / "ft")
    assert ftui("backup", "prune", "demo", "--remote", remote)[0] == 4, "nothing is proved there yet"
    backups.finish(run)
    assert ftui("backup", "now", "demo", "--remote", remote)[0] == 0
    preview = ftui("backup", "prune", "demo")[1]
    assert preview["kept"] == ["final", "adapters/checkpoint-20"] and preview["removed"] == 0 and preview["goes"]
    removed = ftui("backup", "prune", "demo", "--yes")[1]
    assert removed["removed"] == len(preview["goes"])
    listed = backups.client(port).list_objects_v2(Bucket=BUCKET, Prefix=key_of(remote, ""))["Contents"]
    names = {entry["Key"].partition("/demo/")[2] for entry in listed}
    assert {"final/adapter_model.safetensors", "adapters/checkpoint-20/MANIFEST.json", "journal.jsonl"} <= names
    assert "adapters/checkpoint-20/adapter_model.safetensors" in names and len(names) < 20
    assert not any(name.startswith(("checkpoints/", "data/train/")) for name in names)
    assert ftui("backup", "now", "demo", "--remote", remote)[1]["sent_bytes"] < 20_000, "what was pruned stays away"
    assert ftui("backup", "verify", "demo")[0] == 0


def test_no_secret_anywhere(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted in a key file, looked for in every file, every output and every argument list."""
    (house / "srv" / BUCKET).mkdir(parents=True)
    make_run(house / "ft", steps=(40,), size=BIG)
    keys = house / "home" / "keys"
    keys.write_text(f"{backups.KEY}\n{backups.SECRET}\n")
    seen: set[bytes] = set()
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.1):
            for folder in Path("/proc").glob("[0-9]*"):
                try:
                    seen.add((folder / "cmdline").read_bytes())
                except OSError:
                    continue

    outputs = []

    def told(*words: str) -> int:
        done = subprocess.run([str(Path(binary()).with_name("ftui")), *words], capture_output=True)
        outputs.extend([done.stdout, done.stderr])
        return done.returncode

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        with backups.serve_s3(house / "srv") as port:
            endpoint = ["--provider", "other", "--endpoint", f"http://127.0.0.1:{port}", "--region", "us-east-1"]
            setup = ["backup", "setup", *endpoint, "--bucket", f"{BUCKET}/all", "--name", "own"]
            assert told(*setup, "--key-file", str(keys), "--json") == 0
            assert told("backup", "now", "demo", "--remote", f"own:{BUCKET}/all") == 0
            assert told("backup", "verify", "demo", "--full") == 0
            assert told("backup", "restore", f"own:{BUCKET}/all/demo", str(house / "back"), "--json") == 0
        assert told(*setup, "--key-file", str(keys)) == 1, "nobody is there any more"
        for line in ("NOPE\n", "a b c d\ne\nf\ng\n"):
            keys.write_text(line + backups.SECRET * 0)
            assert told(*setup, "--key-file", str(keys)) == 2
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", backups.SECRET)
        monkeypatch.setenv("XDG_CONFIG_HOME", str(house / "ft" / "runs" / "demo" / "recipe.yaml"))  # makes it crash
        told(*setup, "--env-auth")
    finally:
        stop.set()
        watching.join()
    secret = backups.SECRET.encode()
    assert any(b"rcd" in line for line in seen) and not [line for line in seen if secret in line]
    assert not [text for text in outputs if secret in text]
    config = house / "home" / ".config" / "ftui" / "rclone.conf"
    assert secret in config.read_bytes() and config.stat().st_mode & 0o777 == 0o600
    for path in house.rglob("*"):
        if path.is_file() and path not in (config, keys):
            assert secret not in path.read_bytes(), path
