"""A real server: started, asked, killed, stopped. vLLM's part needs an environment of its own and is run by hand:

FTUI_TEST_VLLM=/path/to/its/python pytest -m soak tests/integration/test_serve.py
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.serve import launch
from engine.serve.check import Client
from engine.workspace import Workspace
from tests.support.train import tiny_model

pytestmark = pytest.mark.heavy
QUESTIONS = ["Where is my parcel?", "How do I reset my password?", "I want my money back."]


def _call(*words: str, **env: str) -> tuple[int, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tui", words[0], "--json", *words[1:]],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.fixture
def workspace(house: Path) -> Iterator[Workspace]:
    """The test's own workspace; whatever it serves is ended."""
    place = Workspace(Path(os.environ["FTUI_HOME"])).prepare()
    yield place
    for served in launch.listing(place):
        launch.stop(served)


def _greedy(folder: Path, questions: list[str], count: int) -> list[str]:
    """What transformers itself answers, one prompt at a time."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    answers = []
    for question in questions:
        inputs = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        with torch.no_grad():
            out = model.generate(**inputs, max_new_tokens=count, do_sample=False)
        answers.append(tokenizer.decode(out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
    return answers


def test_a_model_is_served_checked_and_kept_up(workspace: Workspace, tiny_home: Workspace) -> None:
    model = tiny_model(tiny_home)
    code, told = _call("serve", str(model), "--engine", "transformers", "--gpus", "0")
    assert code == 0, told
    served = launch.find(workspace, told["name"])
    assert told["check"]["template"] is True and told["check"]["first_token_s"] > 0
    assert served.key_file.stat().st_mode & 0o777 == 0o600
    secret = served.key
    for path in served.folder.iterdir():
        assert path == served.key_file or not path.is_file() or secret not in path.read_text(errors="replace"), path
    pid = served.state()["pid"]
    assert secret.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
    assert httpx.get(f"{served.url}/v1/models", trust_env=False).status_code == 401
    with Client(served) as client:
        said = [client.stream(told["tuned"], [{"role": "user", "content": q}], max_tokens=24).text for q in QUESTIONS]
    assert said == _greedy(model, QUESTIONS, 24)

    assert (
        _call("serve", str(model), "--engine", "transformers", "--gpus", "0")[1]["error"]["kind"] == "already_running"
    )
    os.kill(pid, signal.SIGKILL)  # it comes back by itself
    deadline = time.monotonic() + 120
    while (state := served.state())["state"] != "ready" or state["pid"] == pid:
        assert time.monotonic() < deadline and state["state"] != "failed", state
        time.sleep(0.2)
    assert state["restarts"] == 1
    code, ended = _call("serve", told["name"], "--stop")
    assert (code, ended["stopped"]) == (0, True)
    assert served.state()["state"] == "stopped" and not Path(f"/proc/{state['pid']}").exists()


def test_a_server_that_cannot_come_up_says_why(workspace: Workspace, tiny_home: Workspace, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for path in tiny_model(tiny_home).iterdir():
        (broken / path.name).write_bytes(path.read_bytes())
    (broken / "tokenizer.json").write_text("{")
    code, told = _call("serve", str(broken), "--engine", "transformers", "--gpus", "0", "--engine-args", "--nonsense")
    assert (code, told["error"]["kind"]) == (1, "server_failed")
    assert Path(told["error"]["where"]).read_text()


@pytest.mark.soak
@pytest.mark.skipif("FTUI_TEST_VLLM" not in os.environ, reason="needs vLLM's own environment")
def test_vllm_serves_what_was_trained(workspace: Workspace, tiny_home: Workspace, tmp_path: Path) -> None:
    """Base, two adapters and the merged model answer as transformers does in float32, token by token."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    model = tiny_model(tiny_home)
    settings = Path(os.environ["XDG_CONFIG_HOME"], "ftui/settings.yaml")
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text(f"vllm_python: {os.environ['FTUI_TEST_VLLM']}\n")
    merged = {}
    for seed, name in enumerate(("one", "two")):
        torch.manual_seed(seed)
        base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        tuned = get_peft_model(base, LoraConfig(r=8, lora_alpha=16, target_modules="all-linear"))
        for key, weight in tuned.named_parameters():
            if "lora_B" in key:
                torch.nn.init.normal_(weight, std=0.02)
        tuned.save_pretrained(tmp_path / name)
        merged[name] = tmp_path / f"{name}-merged"
        assert _call("merge", str(tmp_path / name), "--base", str(model), "--out", str(merged[name]))[0] == 0
        for path in model.glob("token*"):
            (tmp_path / name / path.name).write_bytes(path.read_bytes())
    code, told = _call(
        "serve", str(tmp_path / "one"), "--adapter", f"two={tmp_path / 'two'}", "--engine", "vllm", "--gpus", "0",
        "--max-length", "512",
    )  # fmt: skip
    assert code == 0, told
    assert told["check"]["template"] is True and told["check"]["adapter"] is True
    served = launch.find(workspace, told["name"])
    with Client(served) as client:
        for name, folder in (("base", model), ("one", merged["one"]), ("two", merged["two"])):
            said = [client.stream(name, [{"role": "user", "content": q}], max_tokens=24).text for q in QUESTIONS]
            assert said == _greedy(folder, QUESTIONS, 24), name
    assert launch.stop(served)
    code, told = _call("serve", str(merged["one"]), "--engine", "vllm", "--gpus", "0", "--max-length", "512")
    assert code == 0 and told["check"]["template"] is True
    with Client(launch.find(workspace, told["name"])) as client:
        said = [client.stream(told["tuned"], [{"role": "user", "content": q}], max_tokens=24).text for q in QUESTIONS]
    assert said == _greedy(merged["one"], QUESTIONS, 24)
