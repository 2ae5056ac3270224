"""The parts of a backup that need no server: hashes, ledger, policy, order, forecast, proofs, settings of remotes."""

from __future__ import annotations

import hashlib
import os
import random
import stat
from pathlib import Path

import pytest

from engine import recipe, settings
from engine.backup import control, forecast, hashing, items, protect, remotes, verify
from engine.backup.hashing import Changed, Hashes, Stamp, hash_file
from engine.backup.ledger import FileRecord, Ledger
from engine.backup.policy import of_run
from engine.backup.progress import Progress
from engine.backup.providers import PROVIDERS
from engine.backup.rclone import cause_of, scrubbed
from engine.backup.remote import Seen
from engine.backup.status import at_risk, effective
from engine.backup.worker import Worker, due, pending, signature
from engine.errors import UsageError
from engine.files import write_json
from engine.recipe.backup import parse, rate
from engine.workspace import Workspace
from tests.support.backups import add_checkpoint, make_run


def test_one_read_gives_every_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "PART_SIZE", 1000)
    monkeypatch.setattr(hashing, "BLOCK", 300)
    for size in (0, 1, 299, 300, 999, 1000, 1001, 2000, 5555):
        data = os.urandom(size)
        path = tmp_path / "f"
        path.write_bytes(data)
        found = hash_file(path, whole_md5=True)
        parts = [hashlib.md5(data[at : at + 1000]).digest() for at in range(0, max(size, 1), 1000)]
        assert found.sha256 == hashlib.sha256(data).hexdigest()
        assert found.md5 == hashlib.md5(data).hexdigest()
        assert found.parts == len(parts)
        many = f"{hashlib.md5(b''.join(parts)).hexdigest()}-{len(parts)}"
        assert found.etag == (many if len(parts) > 1 else found.md5)
    assert hash_file(path).md5 is None, "the whole's MD5 costs a second pass of the processor"


def test_parts_stay_below_ten_thousand() -> None:
    assert hashing.part_size_of(1) == hashing.part_size_of(150 << 30) == 16 << 20
    for size in (175 << 30, 1 << 40, 5 << 40):
        assert size / hashing.part_size_of(size) <= 10_000


def test_a_file_that_is_written_to_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"a" * 100)

    def write(_count: int) -> None:
        path.write_bytes(b"b" * 100)
        os.utime(path, ns=(1, 1))

    with pytest.raises(Changed):
        hash_file(path, tick=write)
    assert hash_file(path, length=50).sha256 == hashlib.sha256(b"b" * 50).hexdigest()


def hashes(text: str = "x") -> Hashes:
    return Hashes(Stamp(len(text), 1, 2), hashlib.sha256(text.encode()).hexdigest(), 16, 1, "e" * 32, "e" * 32)


def test_the_ledger_says_no_more_than_was_done(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, "s3:b/x", write=True)

    def state() -> str:
        assert Ledger(tmp_path, "s3:b/x").item("final").state == ledger.item("final").state
        return ledger.item("final").state

    ledger.expects("final", 1)
    assert state() == "SEALED"
    ledger.hashed("final", "a", hashes())
    assert state() == "HASHED"
    ledger.sending("final", "a")
    assert state() == "UPLOADING" and Ledger(tmp_path, "s3:b/x").interrupted
    ledger.uploaded("final", "a", None)
    ledger.hashed("final", "MANIFEST.json", hashes("m"))
    ledger.uploaded("final", "MANIFEST.json", None)
    assert state() == "UPLOADING" and not Ledger(tmp_path, "s3:b/x").interrupted
    ledger.committed("final")
    assert state() == "UPLOADED"
    ledger.verified("final", "a", "etag")
    assert state() == "UPLOADED", "the manifest is not proved yet"
    ledger.verified("final", "MANIFEST.json", "full")
    assert state() == "VERIFIED_ETAG"
    ledger.verified("final", "a", "full")
    assert state() == "VERIFIED_FULL" and ledger.item("final").proved("full")
    ledger.side("final", "STALLED", "no byte")
    assert state() == "STALLED" and not ledger.item("final").safe
    ledger.side("final", None)
    ledger.hashed("final", "a", hashes())
    assert state() == "VERIFIED_FULL", "read again and the same"
    ledger.hashed("final", "a", hashes("other"))
    assert state() == "UPLOADING", "another content is not there"
    ledger.lost("final", "MANIFEST.json", "missing")
    ledger.pruned("final")
    assert ledger.item("final").gone and not list(ledger.known())


def test_a_ledger_cut_anywhere_never_claims_more(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, "r:x", write=True)
    for name in ("a", "MANIFEST.json"):
        ledger.hashed("i", name, hashes(name))
        ledger.sending("i", name)
        ledger.uploaded("i", name, None)
    ledger.committed("i")
    for name in ("a", "MANIFEST.json"):
        ledger.verified("i", name, "etag")
    ledger.close()
    data = ledger.path.read_bytes()
    assert Ledger(tmp_path, "r:x").item("i").safe
    for cut in range(0, len(data), 11):
        ledger.path.write_bytes(data[:cut])
        assert not Ledger(tmp_path, "r:x").item("i").safe
    ledger.path.write_bytes(b'{"event":"verified"}\n[1]\nnonsense\n' + data)
    assert Ledger(tmp_path, "r:x").item("i").safe


def test_a_long_ledger_is_written_anew_and_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.backup.ledger.COMPACT_BYTES", 2000)
    ledger = Ledger(tmp_path, "r:x", write=True)
    for turn in range(30):
        ledger.hashed("i", "journal.jsonl", hashes(str(turn)))
        ledger.sending("i", "journal.jsonl")
        ledger.uploaded("i", "journal.jsonl", None)
    ledger.verified("i", "journal.jsonl", "full")
    ledger.committed("i")
    ledger.pruned("old")
    ledger.side("i", "FAILED", "why")
    ledger.close()
    before, size = Ledger(tmp_path, "r:x").items, ledger.path.stat().st_size
    Ledger(tmp_path, "r:x", write=True).close()
    after = Ledger(tmp_path, "r:x").items
    assert ledger.path.stat().st_size < size / 3
    assert after.keys() == before.keys() and after["old"].gone
    assert (after["i"].state, after["i"].reason, after["i"].files) == ("FAILED", "why", before["i"].files)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ("none", None),
        ("s3:b/x", ("s3:b/x", ("best", "last", "final"), "etag", True)),
        ({"to": "s3:b", "keep": ["all"], "verify": "full", "rows": False}, ("s3:b", ("all",), "full", False)),
        (
            {"to": "/mnt/disk", "keep": "adapter_only"},
            ("/mnt/disk", ("best", "last", "final", "adapter_only"), "etag", True),
        ),
    ],
)
def test_policies(value: object, expected: object) -> None:
    found = parse(value)
    assert expected == (None if found is None else (found.remote, found.keep, found.verify, found.rows))


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ("bucket/x", "backup"),
        (":s3,access_key_id=A:bucket", "backup"),
        ("s3,access_key_id=A:bucket", "backup"),
        ("s3:", "backup"),
        (["s3:b"], "backup"),
        ({"keep": ["best"]}, "backup.to"),
        ({"to": "s3:b", "keep": ["newest"]}, "backup.keep"),
        ({"to": "s3:b", "verify": "md5"}, "backup.verify"),
        ({"to": "s3:b", "rows": "some"}, "backup.rows"),
        ({"to": "s3:b", "limit": "fast"}, "backup.limit"),
        ({"to": "s3:b", "kep": ["best"]}, "backup.kep"),
    ],
)
def test_wrong_policies_are_named(value: object, where: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(value)
    assert caught.value.where == where and caught.value.fix


def test_a_recipe_check_knows_backups(tmp_path: Path) -> None:
    text = "method: lora\nmodel_name_or_path: builtin:tiny\ndataset_path: builtin:support\nbackup: {}\n"
    path = tmp_path / "r.yaml"
    for value, wrong in (
        ("s3:b/x", False),
        ("{to: 's3:b', keep: [best]}", False),
        ("nowhere", True),
        ("{keep: [x]}", True),
    ):
        path.write_text(text.replace("{}", value))
        found = [finding.kind for finding in recipe.check(recipe.load(path)) if finding.key == "backup"]
        assert found == (["bad_backup"] if wrong else []), value


def test_the_default_remote_is_that_of_the_settings() -> None:
    assert of_run({"recipe": {}}) is None
    settings.save(backup="s3:b/all")
    found = of_run({"recipe": {"backup": {"keep": ["final"]}}})
    assert found is not None and (found.remote, found.keep) == ("s3:b/all", ("final",))
    assert found.to("demo") == "s3:b/all/demo"
    assert of_run({"recipe": {"backup": "none"}}) is None


def test_rates() -> None:
    assert [rate(text) for text in ("50M", "1.5 GB/s", "800k", "123", "off", None)] == [
        50e6,
        1.5e9,
        800e3,
        123,
        None,
        None,
    ]
    with pytest.raises(UsageError):
        rate("-5")


def test_what_is_wanted_and_what_it_may_cost(house: Path) -> None:
    run = make_run(house / "ft", steps=(20, 40, 60, 80))
    ledger = Ledger(run.path / "backup", "s3:b", write=True)

    def names(value: object) -> list[str]:
        policy = parse(value)
        assert policy is not None
        return [item.name for item in items.wanted(run, policy, ledger)]

    assert names("s3:b") == ["run", "checkpoints/checkpoint-20", "checkpoints/checkpoint-80"]
    assert len(names({"to": "s3:b", "keep": ["all"]})) == 5
    assert names({"to": "s3:b", "keep": ["last"]}) == ["run", "checkpoints/checkpoint-80"]
    assert names({"to": "s3:b", "keep": ["adapter_only"]}) == [
        "run",
        "adapters/checkpoint-20",
        "adapters/checkpoint-80",
    ]
    policy = parse("s3:b")
    assert policy is not None
    ledger.hashed("checkpoints/checkpoint-40", "optimizer.pt", hashes())
    ledger.sending("checkpoints/checkpoint-40", "optimizer.pt")
    assert "checkpoints/checkpoint-40" in names("s3:b"), "what was begun is finished"
    found = protect.update(run, policy, ledger, items.wanted(run, policy, ledger))
    assert found == {"checkpoint-20", "checkpoint-40", "checkpoint-80"}
    ledger.pruned("checkpoints/checkpoint-20")
    assert "checkpoints/checkpoint-20" not in names("s3:b")


def test_a_run_holds_what_its_recipe_names_and_no_more(house: Path) -> None:
    extra = house / "metrics.py"
    extra.write_text("def metric(): ...\n")
    (house / "model").mkdir()
    (house / "model" / "weights").write_bytes(b"w")
    run = make_run(house / "ft", steps=(20,), compute_metrics=str(extra), model_name_or_path=str(house / "model"))
    policy = parse({"to": "s3:b", "rows": False})
    assert policy is not None
    item = items.run_files(run, policy)
    assert {"named/metrics.py", "named/train.jsonl", "recipe.yaml", "data/data.json"} <= set(item.files)
    assert not any(name.startswith("data/train/") or "weights" in name for name in item.files)
    assert item.document["named"]["named/metrics.py"] == str(extra)
    with open(run.journal, "ab") as file:
        file.write(b'{"event": "torn')
    assert items.run_files(run, policy, fresh=True).files["journal.jsonl"].path.read_bytes().endswith(b"}\n")


def test_a_server_word_is_worth_what_it_can_prove() -> None:
    parts = [hashlib.md5(bytes([n])).digest() for n in range(3)]
    etag, whole = hashing.multipart_etag(parts), "a" * 32
    many = FileRecord(100, 1, 1, "s" * 64, 40, 3, etag)
    assert verify.judge(many, Seen(100, etag)) == "ok"
    assert verify.judge(many, Seen(100, "b" * 32 + "-3")) == "wrong"
    assert verify.judge(many, Seen(99, etag)) == "wrong"
    assert verify.judge(many, Seen(100, "b" * 32 + "-5")) == "unknown", "sent in other parts"
    assert verify.judge(many, Seen(100, whole)) == "unknown", "the MD5 of the whole is not known"
    assert verify.judge(many, Seen(100, whole), whole) == "ok"
    assert verify.judge(many, Seen(100, None)) == "unknown"
    one = FileRecord(100, 1, 1, "s" * 64, 400, 1, whole, whole)
    assert verify.judge(one, Seen(100, whole)) == "ok"
    assert verify.judge(one, Seen(100, hashing.multipart_etag([bytes.fromhex(whole)]))) == "ok"
    assert verify.judge(one, Seen(100, "c" * 32)) == "wrong"
    assert verify.judge(one, Seen(100, "s" * 64, "sha256")) == "ok"


def test_a_forecast_follows_the_rate() -> None:
    for seed in range(20):
        rng, meter, through, now = random.Random(seed), forecast.Rate(), 0.0, 0.0
        total, speed = 2e9, 50e6
        while through < 0.1 * total:
            now += 0.5
            through += speed * 0.5 * rng.uniform(0.6, 1.4)
            meter.add(now, through)
        eta = meter.eta(total - through)
        assert eta is not None and eta[0] <= eta[1] <= eta[2]
        assert eta[1] == pytest.approx((total - through) / speed, rel=0.2)
        half = now + 30
        while now < half:
            now += 0.5
            through += speed / 2 * 0.5 * rng.uniform(0.6, 1.4)
            meter.add(now, through)
        eta = meter.eta(total - through)
        assert eta is not None and eta[1] == pytest.approx((total - through) / (speed / 2), rel=0.2)
    stalled = meter.eta(total - through)
    for _turn in range(60):
        now += 0.5
        meter.add(now, through)
    assert stalled is not None and meter.eta(total - through) is None, "nothing moves: no time can be promised"


def test_forecasts_remember_what_uploads_took(house: Path) -> None:
    workspace = Workspace(house / "ft")
    assert not forecast.measured(workspace, "s3:b").measured
    for seconds in (10, 20, 40):
        forecast.remember(workspace, "s3:b", 10**9, seconds)
    band = forecast.measured(workspace, "s3:b")
    assert (band.low, band.mid, band.high) == (25e6, 50e6, 100e6)
    made = forecast.forecast(14 * 10**11, 100, forecast.Band(100e6, 100e6, 100e6))
    assert made.mid_s / 3600 == pytest.approx(3.9, abs=0.05)
    assert forecast.forecast(10**9, 1, band, full=True).mid_s > 1.9 * forecast.forecast(10**9, 1, band).mid_s


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("api error SignatureDoesNotMatch: x", "auth"),
        ("https response error StatusCode: 403, RequestID: 1, api error Forbidden: Forbidden", "auth"),
        ("StatusCode: 400, api error ExpiredToken", "auth"),
        ("operation error S3: PutObject, StatusCode: 404, api error NoSuchBucket: y", "no_bucket"),
        ("checkpoint-403: object not found", "missing"),
        ("StatusCode: 503, api error SlowDown: Reduce", "busy"),
        ("dial tcp 127.0.0.1:9: connect: connection refused", "network"),
        ("can't copy - source file is being updated (size changed)", "source_changed"),
        ("write /x: no space left on device", "disk_full"),
        ("something else about 403 things", "other"),
    ],
)
def test_causes(text: str, cause: str) -> None:
    assert cause_of(text) == cause


def test_messages_lose_their_secrets() -> None:
    for text in (
        "GET https://h/b?X-Amz-Credential=AKIA%2F1&X-Amz-Signature=PLANTED&X-Amz-Security-Token=PLANTED",
        "secret_access_key = PLANTED",
        "remote s3,secret_access_key=PLANTED:bucket",
        "ftp://user:PLANTED@host/x",
    ):
        assert "PLANTED" not in scrubbed(text)


def test_a_remote_is_written_for_its_owner_alone() -> None:
    values = remotes.s3_values("r2", access_key="A", secret_key="S%s", account="acc")
    assert values["endpoint"] == "https://acc.r2.cloudflarestorage.com" and values["region"] == "auto"
    path = remotes.write("r2", values)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    remotes.write("other", remotes.s3_values("other", access_key=None, secret_key=None, endpoint="http://h"))
    assert remotes.names_in(path) == ["r2", "other"]
    assert "secret_access_key = S%s\n" in path.read_text() and "env_auth = true\n" in path.read_text()
    for bad in ("a b", "", "x:y"):
        with pytest.raises(UsageError):
            remotes.write(bad, {})
    with pytest.raises(UsageError):
        remotes.write("x", {"endpoint": "a\nsecret_access_key = b"})
    for provider in PROVIDERS.values():
        assert provider.source.startswith("https://")
    with pytest.raises(UsageError):
        remotes.s3_values("nobody", access_key=None, secret_key=None)
    with pytest.raises(UsageError):
        remotes.s3_values("aws", access_key="A", secret_key=None)


def test_training_goes_first(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"

    def journal(*rows: tuple[float, float]) -> None:
        path.write_text("".join(f'{{"event":"log","time":{t},"step_time_s":{s}}}\n' for t, s in rows))

    calm = [(float(t), 1.0) for t in range(20)]
    watch = control.StepWatch(path, 20.0)
    journal(*calm, (25.0, 1.05))
    assert watch.look(31.0, 80e6) is None
    journal(*calm, (25.0, 1.3), (28.0, 1.3))
    assert watch.look(42.0, 80e6) == 40e6
    assert watch.look(43.0, 80e6) == 40e6, "not at each look"
    assert watch.look(53.0, 40e6) == 20e6
    journal(*calm, (50.0, 1.0), (55.0, 1.0), (60.0, 1.0))
    assert watch.look(64.0, 20e6) == 25e6


def test_an_upload_slows_down_for_training(tmp_path: Path) -> None:
    """The worker hears the rate from the upload itself, and halves it when steps take longer."""
    path = tmp_path / "journal.jsonl"
    times = [(float(t), 1.0) for t in range(20)] + [(25.0, 1.5), (28.0, 1.5)]
    path.write_text("".join(f'{{"event":"log","time":{t},"step_time_s":{s}}}\n' for t, s in times))
    worker = Worker(Workspace(tmp_path).prepare())
    worker.watch = control.StepWatch(path, 20.0)
    assert worker._look() == (False, None)  # nothing is known of the rate yet
    progress = Progress(tmp_path / "progress", "s3:b")
    for second in range(12):
        progress.rate.add(float(second), second * 8e6)
    worker._told(progress)
    worker.watch = control.StepWatch(path, 20.0)
    assert worker._look() == (False, pytest.approx(4e6, rel=0.05))


def test_due_only_when_something_changed(house: Path) -> None:
    run = make_run(house / "ft", steps=(20,), backup="s3:b")
    assert due(run, 0) and pending(run)
    note = run.path / "backup" / "pass.json"
    note.parent.mkdir()
    write_json(note, {"format": 1, "signature": signature(run), "retry_at": None})
    assert not due(run, 1e12) and not pending(run)
    write_json(note, {"format": 1, "signature": signature(run), "retry_at": 100.0})
    assert not due(run, 99.0) and due(run, 100.0) and pending(run)
    write_json(note, {"format": 1, "signature": signature(run), "retry_at": None})
    add_checkpoint(run, 40)
    assert due(run, 0)


def test_at_risk_counts_what_is_only_here(house: Path) -> None:
    run = make_run(house / "ft", steps=(20,))
    assert effective(run) is None and at_risk(run, None)["steps"] == 29
    ledger = Ledger(run.path / "backup", "s3:b", write=True)
    ledger.hashed("checkpoints/checkpoint-20", "a", hashes())
    ledger.uploaded("checkpoints/checkpoint-20", "a", None)
    ledger.committed("checkpoints/checkpoint-20")
    assert at_risk(run, effective(run))["steps"] == 29, "sent, not proved"
    ledger.verified("checkpoints/checkpoint-20", "a", "etag")
    assert at_risk(run, effective(run)) == {"steps": 9, "seconds": 18.0, "step": 20, "money": None}
