"""The journal under kill -9, torn lines, truncation and a full disk."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine import journal
from engine.journal import JournalReader, JournalWriter

WRITER = (
    "import sys\nfrom pathlib import Path\nfrom engine.journal import JournalWriter\n"
    "writer = JournalWriter(Path(sys.argv[1]), attempt=int(sys.argv[2]))\n"
    "print('up', flush=True)\nn = 0\n"
    "while True:\n    n += 1\n    writer.append('log', n=n, filler='x' * (n % 5000))\n"
)


def test_every_line_is_whole_whenever_the_writer_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    reader = JournalReader(path)
    seen: list[tuple[int, int]] = []
    chance = random.Random(7)
    for attempt in range(1, 13):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(attempt)], stdout=subprocess.PIPE)
        assert writer.stdout is not None and writer.stdout.readline() == b"up\n"
        end = time.monotonic() + chance.uniform(0.0, 0.03)
        while time.monotonic() < end:
            seen += [(event["attempt"], event["n"]) for event in reader.poll()]
        writer.kill()
        writer.communicate()
    for event in reader.all():
        seen.append((event["attempt"], event["n"]))
    assert reader.bad_lines == 0 and reader.restarts == 0
    for line in path.read_bytes().splitlines():
        json.loads(line)
    for attempt in range(1, 13):
        numbers = [n for a, n in seen if a == attempt]
        assert numbers == list(range(1, len(numbers) + 1)), "none lost, none twice"


@pytest.mark.parametrize("torn", [b"{", b'{"event": "log", "n": 3', b"\xff\xfe\x00", b"x" * 600_000])
def test_a_torn_last_line_waits_for_its_end_and_is_cut_by_the_next_writer(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "journal.jsonl"
    JournalWriter(path).append("log", n=1)
    whole = path.read_bytes()
    path.write_bytes(whole + torn)
    reader = JournalReader(path)
    assert [event["n"] for event in reader.all()] == [1]
    writer = JournalWriter(path)
    assert path.read_bytes() == whole
    writer.append("log", n=2)
    assert [event["n"] for event in reader.all()] == [2]
    assert reader.bad_lines == 0
    assert (journal.last(path) or {})["n"] == 2


def test_a_file_without_any_line_end_is_emptied_by_the_writer(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b"garbage" * 100_000)
    JournalWriter(path).append("log", n=1)
    assert [event["n"] for event in journal.read_all(path)] == [1]


def test_a_line_that_arrives_in_pieces_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    line = b'{"event": "log", "n": 1}\n'
    reader = JournalReader(path)
    assert reader.poll() == []
    with open(path, "wb", buffering=0) as file:
        for byte in line[:-1]:
            file.write(bytes([byte]))
            assert reader.poll() == []
        file.write(b"\n")
    assert [event["n"] for event in reader.poll()] == [1]
    assert reader.poll() == []


def test_a_shorter_or_replaced_file_is_read_again_from_the_start(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    writer = JournalWriter(path)
    for n in range(10):
        writer.append("log", n=n)
    reader = JournalReader(path)
    assert len(list(reader.all())) == 10
    os.truncate(path, 0)
    writer.append("log", n=100)
    assert [event["n"] for event in reader.poll()] == [100]
    assert reader.restarts == 1
    other = tmp_path / "other"
    JournalWriter(other).append("log", n=200, filler="x" * 1000)
    other.replace(path)
    assert [event["n"] for event in reader.poll()] == [200]
    assert reader.restarts == 2


def test_lines_that_are_no_objects_are_counted_and_skipped(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b'7\n[]\nnull\n{"n": 1}\nnot json\n\xff\n{"n": 2}\n')
    reader = JournalReader(path)
    assert [event["n"] for event in reader.all()] == [1, 2]
    assert reader.bad_lines == 5


def test_numbers_that_json_lacks_become_null(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    JournalWriter(path).append("log", loss=float("nan"), grad_norm=float("inf"))
    event = json.loads(path.read_text())
    assert event["loss"] is None and event["grad_norm"] is None


def test_a_full_disk_keeps_whole_lines_and_the_writer_goes_on_when_there_is_room(tmp_path: Path) -> None:
    code = (
        "import resource, signal, sys\nfrom pathlib import Path\nfrom engine.journal import JournalWriter\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "writer = JournalWriter(Path(sys.argv[1]))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, -1))\n"  # a write is cut short there, then fails
        "failed = 0\n"
        "for n in range(30):\n"
        "    try: writer.append('log', n=n, filler='x' * 50)\n"
        "    except OSError: failed += 1\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))\n"
        "writer.append('log', n=1000)\nprint(failed)\n"
    )
    path = tmp_path / "journal.jsonl"
    said = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    numbers = [event["n"] for event in journal.read_all(path)]
    kept = 30 - int(said.stdout)
    assert 0 < kept < 30
    assert numbers == [*range(kept), 1000]
    assert path.read_bytes().endswith(b"\n")


def test_last_finds_the_newest_that_fits_within_its_window(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    assert journal.last(path) is None
    writer = JournalWriter(path)
    for n in range(2000):
        writer.append("save" if n == 1500 else "log", n=n, filler="x" * 200)
    assert (journal.last(path) or {})["n"] == 1999
    assert (journal.last(path, {"event": "save"}) or {})["n"] == 1500
    assert journal.last(path, {"event": "save"}, window=1000) is None


def test_a_reader_follows_a_writer_that_never_pauses(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path), "1"], stdout=subprocess.PIPE)
    assert writer.stdout is not None and writer.stdout.readline() == b"up\n"
    reader = JournalReader(path)
    numbers: list[int] = []
    deadline = time.monotonic() + 20
    while len(numbers) < 3000:
        assert time.monotonic() < deadline
        numbers += [event["n"] for event in reader.poll()]
    writer.send_signal(signal.SIGKILL)
    writer.communicate()
    assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_what_is_no_file_holds_no_lines_and_keeps_nobody_waiting(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "journal.jsonl"
    path.mkdir() if kind == "folder" else os.mkfifo(path)
    assert journal.read_all(path) == [] and journal.last(path) is None


def test_a_line_whose_event_is_no_name_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b'{"event": ["log"]}\n{"event": {}}\n{"event": "log", "n": 1}\n{"time": 2}\n')
    reader = JournalReader(path)
    assert [event.get("n") for event in reader.all()] == [1, None] and reader.bad_lines == 2
