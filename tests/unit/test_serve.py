"""What is served, whether it fits, how it is called, and the lines handed to the user."""

from __future__ import annotations

import asyncio
import json
import shlex
import socket
from pathlib import Path
from typing import Any

import pytest
import yaml

from engine.errors import DoesNotFit, FtuiError, UsageError
from engine.serve import check, engines, fit, handoff, launch, target
from engine.serve.engines import Engine
from engine.serve.transformers_server import Front
from engine.workspace import Workspace

CONFIG = {
    "model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "hidden_size": 4096, "head_dim": 128, "max_position_embeddings": 131072, "dtype": "bfloat16",
}  # fmt: skip
GIB = 2**30


def _model(folder: Path, size: int = 100, **config: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **config}))
    with open(folder / "model.safetensors", "wb") as file:
        file.truncate(size)
    return folder


def _adapter(folder: Path, base: Path | str, **config: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    document = {"peft_type": "LORA", "r": 16, "base_model_name_or_path": str(base), **config}
    (folder / "adapter_config.json").write_text(json.dumps(document))
    (folder / "adapter_model.safetensors").write_bytes(b"")
    return folder


def test_an_adapter_is_served_on_its_base(tmp_path: Path) -> None:
    base = _model(tmp_path / "base")
    found = target.find(Workspace(tmp_path), str(_adapter(tmp_path / "my adapter", base, rank_pattern={"q": 40})))
    assert (found.model, found.served, found.tuned) == (base, "base", "my-adapter")
    assert found.adapters[0].rank == 40


def test_a_base_and_an_adapter_of_one_name_stay_two(tmp_path: Path) -> None:
    found = target.find(Workspace(tmp_path), str(_adapter(tmp_path / "base", _model(tmp_path / "m"))))
    assert found.served != found.tuned


def test_a_whole_model(tmp_path: Path) -> None:
    found = target.find(Workspace(tmp_path), str(_model(tmp_path / "merged")))
    assert (found.tuned, found.adapters) == ("merged", ())


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        ("nothing", "not_a_model"),
        ("no weights", "model_incomplete"),
        ("no base", "base_not_found"),
        ("no rank", "adapter_broken"),
    ],
)
def test_what_cannot_be_served(tmp_path: Path, spoil: str, kind: str) -> None:
    folder = tmp_path / "x"
    if spoil == "nothing":
        folder.mkdir()
    elif spoil == "no weights":
        _model(folder)
        (folder / "model.safetensors").unlink()
    elif spoil == "no base":
        _adapter(folder, tmp_path / "gone")
    else:
        _adapter(folder, _model(tmp_path / "m"), r=None)
    with pytest.raises(UsageError) as caught:
        target.find(Workspace(tmp_path), str(folder))
    assert caught.value.kind == kind


def test_a_name_that_is_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        target.find(Workspace(tmp_path), "nothing-of-that-name")


def test_cache_of_a_token() -> None:
    assert fit.token_bytes(CONFIG, "bfloat16") == 2 * 32 * 8 * 128 * 2  # 128 KiB: Llama-3.1-8B
    assert fit.token_bytes({"text_config": CONFIG}, "float32") == 2 * 2 * 32 * 8 * 128 * 2


def test_one_card_where_one_is_enough(tmp_path: Path) -> None:
    found = fit.check(_model(tmp_path, 16 * GIB), CONFIG, "bfloat16", [80 * GIB] * 8, host=0)
    assert found.tensor_parallel == 1 and found.max_length == 131072


def test_more_cards_where_one_is_too_small(tmp_path: Path) -> None:
    found = fit.check(_model(tmp_path, 141 * GIB), CONFIG, "bfloat16", [80 * GIB] * 8, host=0)
    assert found.tensor_parallel == 4  # two hold 136 GiB of use
    assert found.max_length == 131072


def test_a_shorter_context_where_the_cache_is_small(tmp_path: Path) -> None:
    found = fit.check(_model(tmp_path, 16 * GIB), CONFIG, "bfloat16", [24 * GIB], host=0)
    assert 2048 <= found.max_length < 131072
    assert found.weights + found.max_length * found.token_bytes <= found.room


def test_cards_must_divide_the_heads(tmp_path: Path) -> None:
    config = {**CONFIG, "num_attention_heads": 6}
    found = fit.check(_model(tmp_path, 100 * GIB), config, "bfloat16", [80 * GIB] * 8, host=0)
    assert found.tensor_parallel == 2
    with pytest.raises(DoesNotFit):
        fit.check(_model(tmp_path, 200 * GIB), config, "bfloat16", [80 * GIB] * 8, host=0)


def test_what_does_not_fit(tmp_path: Path) -> None:
    with pytest.raises(DoesNotFit) as caught:
        fit.check(_model(tmp_path, 30 * GIB), CONFIG, "bfloat16", [24 * GIB], host=0)
    assert caught.value.exit_code == 3
    with pytest.raises(DoesNotFit):
        fit.check(_model(tmp_path, 16 * GIB), CONFIG, "bfloat16", [24 * GIB], host=0, wanted=131072)
    with pytest.raises(DoesNotFit):
        fit.check(_model(tmp_path, 16 * GIB), CONFIG, "bfloat16", [], host=8 * GIB)


def _fit(**changes: Any) -> fit.Fit:
    values = {"tensor_parallel": 1, "max_length": 4096, "cache_tokens": 9000, "weights": GIB, "token_bytes": 131072}
    return fit.Fit(**{**values, "room": 10 * GIB, **changes})


def test_vllm_command(tmp_path: Path) -> None:
    adapters = (target.Adapter("a", tmp_path / "a", 12), target.Adapter("b", tmp_path / "b", 40))
    served = target.Target("a", tmp_path / "base", "base", adapters)
    argv = engines.command(
        Engine("vllm", "/v/bin/python"), served, host="127.0.0.1", port=8001, dtype="bfloat16",
        fit=_fit(tensor_parallel=2), on_cpu=False, extra=["--seed", "1"],
    )  # fmt: skip
    said = {argv[i]: argv[i + 1] for i in range(len(argv) - 1)}
    assert argv[:3] == ["/v/bin/python", "-m", "vllm.entrypoints.openai.api_server"]
    assert said["--max-lora-rank"] == "64"  # the smallest that vLLM takes and that holds rank 40
    assert said["--tensor-parallel-size"] == "2" and said["--max-model-len"] == "4096"
    assert argv[argv.index("--lora-modules") + 1 :][:2] == [f"a={tmp_path}/a", f"b={tmp_path}/b"]
    assert argv[-2:] == ["--seed", "1"]
    assert not any("key" in word.lower() for word in argv)


def test_environment_of_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    on_gpu = engines.environment(Engine("vllm", "/v/bin/python"), gpus=("GPU-1", "GPU-2"), fit=_fit())
    assert on_gpu["CUDA_VISIBLE_DEVICES"] == "GPU-1,GPU-2" and "VLLM_CPU_KVCACHE_SPACE" not in on_gpu
    assert on_gpu["PATH"].startswith("/v/bin:") and on_gpu["HF_HUB_OFFLINE"] == "1"
    on_cpu = engines.environment(Engine("vllm", "/v/bin/python"), gpus=(), fit=_fit())
    assert on_cpu["VLLM_CPU_KVCACHE_SPACE"] == "8"  # 16 conversations of 4,096 tokens, 128 KiB each


@pytest.mark.parametrize(
    ("config", "on_cpu", "dtype"),
    [
        ({"dtype": "float32"}, True, "float32"),
        ({"dtype": "float32"}, False, "bfloat16"),
        ({"torch_dtype": "float16"}, False, "float16"),
        ({"text_config": {"dtype": "bfloat16"}}, True, "bfloat16"),
        ({}, False, "bfloat16"),
    ],
)
def test_type_to_serve_in(config: dict[str, Any], on_cpu: bool, dtype: str) -> None:
    assert engines.dtype_of(config, on_cpu=on_cpu) == dtype


def test_no_engine_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "missing", lambda python, packages: packages)
    with pytest.raises(FtuiError) as caught:
        engines.choose(None)
    assert caught.value.kind == "no_engine" and "serving" in str(caught.value.fix)
    with pytest.raises(FtuiError) as caught:
        engines.choose("vllm")
    assert caught.value.kind == "no_vllm" and "vllm_python" in str(caught.value.fix)


def test_a_port_in_use() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(FtuiError) as caught:
            launch.free_port("127.0.0.1", port)
        assert caught.value.kind == "port_in_use"
    assert launch.free_port("127.0.0.1", None) >= launch.FIRST_PORT


@pytest.mark.parametrize(
    "document",
    [
        {"token_ids": [1, 2]},
        {"prompt_token_ids": [1, 2]},
        [{"prompts": {"prompt_token_ids": [1, 2]}}],
        {"tokens": [1, 2], "count": 2},
    ],
)
def test_token_ids_wherever_a_server_puts_them(document: Any) -> None:
    assert check.prompt_ids(document) == [1, 2]


def _served(folder: Path) -> launch.Served:
    place = folder / "serve/mine"
    place.mkdir(parents=True)
    (place / "key").write_text("ftui-secret\n")
    spec = {
        "name": "mine", "run": None, "engine": "vllm", "host": "127.0.0.1", "port": 8000, "served": "base",
        "tuned": "it's mine", "model": str(folder / "hub/models--a--b/snapshots/c"), "gpus": ["GPU-1"],
        "adapters": [{"name": "mine", "path": str(folder / "a"), "rank": 8}], "key_variable": "VLLM_API_KEY",
        "fit": _fit().to_json(), "env": {"HF_HUB_OFFLINE": "1", "PATH": "/x"},
        "argv": ["/v/python", "-m", "vllm", "--model", "/m", "--host", "127.0.0.1", "--x", "100%"],
    }  # fmt: skip
    (place / "spec.json").write_text(json.dumps(spec))
    return launch.Served(place)


def test_lines_to_copy_hold_no_key(tmp_path: Path) -> None:
    served = _served(tmp_path)
    spec = served.spec
    texts = [f(served, spec) for f in (handoff.curl, handoff.client, handoff.systemd, handoff.compose)]
    assert not any("ftui-secret" in text for text in [*texts, handoff.tunnel(spec), handoff.key(served)])
    assert str(served.key_file) in handoff.key(served) and handoff.KEY in handoff.client(served, spec)
    words = shlex.split(handoff.curl(served, spec))
    assert json.loads(words[-1])["model"] == "it's mine"
    compile(handoff.client(served, spec), "client", "exec")
    assert "100%%" in handoff.systemd(served, spec)
    (service,) = yaml.safe_load(handoff.compose(served, spec))["services"].values()
    assert f"{tmp_path}/hub/models--a--b:{tmp_path}/hub/models--a--b:ro" in service["volumes"]
    assert service["ports"] == ["127.0.0.1:8000:8000"]


def test_a_server_whose_supervisor_is_gone_is_lost(tmp_path: Path) -> None:
    served = _served(tmp_path)
    state = {"state": "ready", "supervisor": {"pid": 2**22 - 3, "start": 1, "boot": "x"}}
    (served.folder / "state.json").write_text(json.dumps(state))
    assert served.state()["state"] == "lost" and not served.live
    assert launch.stop(served)


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", '{"engine": 3}', "null"])
@pytest.mark.parametrize("name", ["spec.json", "state.json"])
def test_a_damaged_folder_spoils_no_other(tmp_path: Path, name: str, text: str) -> None:
    good = _served(tmp_path)
    other = tmp_path / "serve/other"
    other.mkdir()
    for path in good.folder.iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    (other / name).write_text(text)
    listed = launch.listing(Workspace(tmp_path))
    assert [served.name for served in listed] == (["mine", "other"] if name == "state.json" else ["mine"])
    assert {served.state()["state"] for served in listed} == {"lost"}
    assert all(launch.stop(served) for served in listed)


async def _ask(
    front: Front, path: str, body: bytes = b"", key: str | None = None, method: str = "POST"
) -> tuple[int, Any]:
    sent: list[dict[str, Any]] = []
    headers = [(b"authorization", f"Bearer {key}".encode())] if key else []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await front({"type": "http", "path": path, "method": method, "headers": headers}, receive, send)
    return sent[0]["status"], sent[1]["body"]


def _front() -> tuple[Front, list[Any]]:
    seen: list[Any] = []

    async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
        body = (await receive())["body"]
        length = dict(scope["headers"]).get(b"content-length")
        seen.append((scope["path"], json.loads(body) if body else None, length == str(len(body)).encode()))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    return Front(app, key="k", name="mine", folder="/models/m", render=lambda document: [1, 2]), seen


def test_the_front_lets_nobody_in_without_the_key() -> None:
    front, seen = _front()
    body = json.dumps({"model": "mine", "messages": []}).encode()
    for key in (None, "wrong", "k "):
        for path in ("/v1/chat/completions", "/v1/models", "/metrics", "/reset", "/docs"):
            assert asyncio.run(_ask(front, path, body, key))[0] == 401
    assert seen == []
    assert asyncio.run(_ask(front, "/health", method="GET"))[0] == 200


def test_the_front_gives_the_model_its_name() -> None:
    front, seen = _front()
    body = json.dumps({"model": "mine", "messages": []}).encode()
    assert asyncio.run(_ask(front, "/v1/chat/completions", body, "k"))[0] == 200
    assert seen == [("/v1/chat/completions", {"model": "/models/m", "messages": []}, True)]
    assert asyncio.run(_ask(front, "/v1/chat/completions", b'{"model": "other"}', "k"))[0] == 404
    status, answer = asyncio.run(_ask(front, "/v1/models", b"", "k", "GET"))
    assert status == 200 and json.loads(answer)["data"][0]["id"] == "mine"
    status, answer = asyncio.run(_ask(front, "/v1/chat/completions/render", body, "k"))
    assert json.loads(answer) == {"token_ids": [1, 2]}
    assert b"ftui:requests_total 1" in asyncio.run(_ask(front, "/metrics", b"", "k", "GET"))[1]


def test_the_front_refuses_what_is_too_large() -> None:
    front, seen = _front()
    assert asyncio.run(_ask(front, "/v1/completions", b"x" * (16 * 1024 * 1024 + 1), "k"))[0] == 413
    assert seen == []


def test_fp8_needs_a_package_beside_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {**CONFIG, "quantization_config": {"quant_method": "compressed-tensors"}}
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(engines, "missing", lambda _python, names: asked.append(names) or names)
    engines.require(Engine("vllm", "/env/python"), config)
    engines.require(Engine("transformers", "/env/python"), CONFIG)
    assert not asked
    with pytest.raises(FtuiError, match="compressed-tensors"):
        engines.require(Engine("transformers", "/env/python"), config)


def test_counters_are_added_up_over_their_labels() -> None:
    text = '# HELP a b\na{x="1"} 2\na{x="2"} 3.5\nb 1\nc{y="z w"} NaNope\n\n'
    assert check.counters(text) == {"a": 5.5, "b": 1.0}


def test_a_merge_of_another_kind_is_not_taken_for_the_adapter(tmp_path: Path) -> None:
    from engine.serve import whole

    base = _model(tmp_path / "base")
    workspace = Workspace(tmp_path / "ws")
    found = target.find(workspace, str(_adapter(tmp_path / "support", base)))
    folder = _model(whole.place(workspace, found))
    assert whole.ready(workspace, found) is None
    document = {"adapter": {"path": str(found.adapters[0].path)}}
    for more, wanted in (({}, folder), ({"adapters": [{}]}, None), ({"quantized_base": {}}, None)):
        (folder / "provenance.json").write_text(json.dumps({**document, **more}))
        assert whole.ready(workspace, found) == wanted
    (folder / "provenance.json").write_text(json.dumps(document))
    (found.adapters[0].path / "adapter_model.safetensors").touch()
    import os

    os.utime(folder / "provenance.json", (1, 1))
    assert whole.ready(workspace, found) is None, "the adapter is newer"
