"""`ftui model` against a hub on loopback: real huggingface_hub, real files, in a process of its own."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.hub_server import Hub, Repository, serve

NAME = "maker/small"


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serve() as server:
        server.repositories[NAME] = Repository(
            {
                "config.json": b'{"model_type": "llama"}',
                "tokenizer.json": b"{}" + b" " * 3000,
                "model-00001-of-00002.safetensors": os.urandom(300_000),
                "model-00002-of-00002.safetensors": os.urandom(200_000),
                "model.safetensors.index.json": json.dumps(
                    {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
                ).encode(),
                "original/consolidated.00.pth": os.urandom(50_000),
                "pytorch_model.bin": os.urandom(50_000),
                "LICENSE": b"Apache",
            },
            card={"license": "apache-2.0"},
        )
        yield server


@pytest.fixture
def ftui(hub: Hub, tmp_path: Path) -> Any:
    """Runs the command; returns (exit code, JSON)."""
    environment = {
        **os.environ,
        "HF_ENDPOINT": hub.address,
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "1",
        "FTUI_HOME": str(tmp_path / "home"),
    }

    def call(*words: str, **more: str) -> tuple[int, Any]:
        done = subprocess.run(
            [sys.executable, "-m", "tui", *words, "--json"],
            env={**environment, **more},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, json.loads(done.stdout) if done.stdout.strip() else None

    call.environment = environment  # type: ignore[attr-defined]
    return call


def test_get_list_remove(hub: Hub, ftui: Any, tmp_path: Path) -> None:
    code, plan = ftui("model", "get", NAME, "--dry-run")
    assert code == 0
    assert plan["to_fetch"] == plan["bytes"] and hub.fetched() == []
    code, got = ftui("model", "get", NAME)
    assert code == 0
    folder = Path(got["path"])
    repository = hub.repositories[NAME]
    expected = {name for name in repository.files if not name.startswith(("original/", "pytorch"))}
    assert {path.name for path in folder.iterdir()} == expected
    assert all((folder / name).read_bytes() == repository.files[name] for name in expected)
    assert got["commit"] == repository.commit and got["license"] == "apache-2.0"
    before = len(hub.fetched())
    code, again = ftui("model", "get", NAME)
    assert (code, again["fetched"], len(hub.fetched())) == (0, 0, before)
    _code, listed = ftui("model", "list")
    assert [(row["model"], row["complete"], row["verified"]) for row in listed] == [(NAME, True, repository.commit)]
    code, removed = ftui("model", "rm", NAME)
    assert code == 0 and removed["bytes"] > 500_000
    assert not (tmp_path / "hf/hub/models--maker--small").exists()
    assert ftui("model", "rm", NAME)[0] == 2


def test_a_fetched_model_works_offline(hub: Hub, ftui: Any, tmp_path: Path) -> None:
    ftui("model", "get", NAME)
    recipe = tmp_path / "r.yaml"
    (tmp_path / "rows.jsonl").write_text(
        '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n' * 3
    )
    recipe.write_text(f"model_name_or_path: {NAME}\ndataset_path: rows.jsonl\n")
    hub.status = 503
    _code, checked = ftui("recipe", "check", str(recipe), HF_HUB_OFFLINE="1")
    assert not [finding for finding in checked["findings"] if finding["kind"] in ("missing_model", "model_not_here")]


def test_a_transfer_that_breaks_off_goes_on(hub: Hub, ftui: Any) -> None:
    hub.break_after = 130_000
    code, got = ftui("model", "get", NAME)
    assert code == 0
    data = (Path(got["path"]) / "model-00001-of-00002.safetensors").read_bytes()
    assert data == hub.repositories[NAME].files["model-00001-of-00002.safetensors"]


def test_killed_download_keeps_whole_files(hub: Hub, ftui: Any) -> None:
    hub.pause_s = 0.15
    process = subprocess.Popen(
        [sys.executable, "-m", "tui", "model", "get", NAME], env=ftui.environment, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 30
    snapshots = Path(ftui.environment["HF_HOME"]) / "hub/models--maker--small/snapshots"
    while not any(snapshots.glob("*/*.json")):  # the first small file is whole, the large ones are on their way
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    hub.pause_s = 0
    _code, plan = ftui("model", "get", NAME, "--dry-run")
    assert 0 < plan["to_fetch"] < plan["bytes"]
    code, got = ftui("model", "get", NAME)
    assert code == 0 and got["fetched"] == plan["to_fetch"]


def test_damage_on_the_way_is_found(hub: Hub, ftui: Any) -> None:
    repository = hub.repositories[NAME]
    good = repository.files["model-00002-of-00002.safetensors"]
    repository.served["model-00002-of-00002.safetensors"] = good[:-1] + bytes([good[-1] ^ 1])
    code, error = ftui("model", "get", NAME)
    assert (code, error["error"]["kind"]) == (1, "hash_mismatch")
    repository.served.clear()
    before = len(hub.fetched())
    assert ftui("model", "get", NAME)[0] == 0
    assert [Path(path).name for path in hub.fetched()[before:]] == ["model-00002-of-00002.safetensors"]


@pytest.mark.parametrize(
    ("spoil", "words", "code", "kind"),
    [
        ("gated", (NAME,), 1, "gated"),
        ("", ("maker/none",), 2, "no_such_model"),
        ("", ("not a name",), 2, "no_such_model"),
        ("", (NAME, "--revision", "v9"), 2, "no_such_revision"),
        ("down", (NAME,), 1, "hub_unreachable"),
        ("401", (NAME,), 1, "no_access"),
    ],
)
def test_what_the_hub_refuses(hub: Hub, ftui: Any, spoil: str, words: tuple[str, ...], code: int, kind: str) -> None:
    hub.repositories[NAME].gated = spoil == "gated"
    hub.status = {"down": 503, "401": 401}.get(spoil, 200)
    found, error = ftui("model", "get", *words)
    assert (found, error["error"]["kind"]) == (code, kind), error


def test_offline_and_nobody_there(ftui: Any) -> None:
    code, error = ftui("model", "get", NAME, HF_HUB_OFFLINE="1")
    assert (code, error["error"]["kind"]) == (1, "hub_unreachable")
    code, error = ftui("model", "get", NAME, HF_ENDPOINT="http://127.0.0.1:9")
    assert (code, error["error"]["kind"]) == (1, "hub_unreachable")


def test_gated_with_a_token(hub: Hub, ftui: Any) -> None:
    hub.repositories[NAME].gated = True
    assert ftui("model", "get", NAME, HF_TOKEN="hf_" + "x" * 20)[0] == 0


def test_run_offers_to_fetch_a_missing_base(hub: Hub, ftui: Any, tmp_path: Path) -> None:
    """On a terminal `ftui run` asks first; the model is there before the run starts."""
    (tmp_path / "rows.jsonl").write_text(
        '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n' * 3
    )
    (tmp_path / "r.yaml").write_text(f"model_name_or_path: {NAME}\ndataset_path: rows.jsonl\nlora_r: nonsense\n")
    control, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "tui", "run", str(tmp_path / "r.yaml")],
        env=ftui.environment,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    os.write(control, b"y\n")
    shown = b""
    try:
        while block := os.read(control, 4096):
            shown += block
    except OSError:
        pass  # the other side is closed
    os.close(control)
    assert process.wait(timeout=60) == 2  # the recipe is wrong, so that nothing starts
    assert b"Fetch it now?" in shown and b"every hash checked" in shown, shown
