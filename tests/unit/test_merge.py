"""What the light half of a merge decides: findings, places, types, tied embeddings; no torch."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.errors import DoesNotFit, UsageError
from engine.merge import folder as folders
from engine.merge.run import Result, merge
from engine.merge.source import Source, find
from engine.workspace import Workspace
from tests.support import merge_files as files
from tests.support.merge_files import Q, adapter_tensors, base_tensors, numbers, write_adapter, write_base
from tui.cli import main


def look(tmp_path: Path, **options: Any) -> Result:
    return merge(Source(tmp_path / "adapter"), tmp_path / "out", dry_run=True, **options)


def kinds(result: Result, level: str = "error") -> set[str]:
    return {finding.kind for finding in result.findings if finding.level == level}


def drop(tensors: dict[str, Any], end: str) -> dict[str, Any]:
    return {name: value for name, value in tensors.items() if not name.endswith(end)}


BAD: dict[str, tuple[dict[str, Any] | None, dict[str, Any], str]] = {
    "a layer that is not there": (adapter_tensors("model.layers.7.self_attn.q_proj"), {}, "adapter_key_not_in_base"),
    "another architecture": (adapter_tensors("transformer.h.0.attn.c_attn"), {}, "adapter_key_not_in_base"),
    "a key that nobody knows": ({**adapter_tensors(), "something.else": numbers(3)}, {}, "adapter_key_not_in_base"),
    "no lora_B": (drop(adapter_tensors(), "lora_B.weight"), {}, "lora_pair_incomplete"),
    "no lora_A": (drop(adapter_tensors(), "lora_A.weight"), {}, "lora_pair_incomplete"),
    "no magnitude": (None, {"use_dora": True}, "lora_pair_incomplete"),
    "no tensors": ({}, {}, "lora_pair_incomplete"),
    "a magnitude without DoRA": (
        {**adapter_tensors(), f"base_model.model.{Q}.lora_magnitude_vector": numbers(8)},
        {},
        "adapter_config",
    ),
    "another rank in the config": (None, {"r": 8}, "rank_mismatch"),
    "another rank in a pattern": (None, {"rank_pattern": {"self_attn.q_proj": 2}}, "rank_mismatch"),
    "ranks of A and B differ": (
        {**adapter_tensors(), f"base_model.model.{Q}.lora_B.weight": numbers(8, 3)},
        {},
        "rank_mismatch",
    ),
    "too wide": (adapter_tensors(inner=16), {}, "shape_mismatch"),
    "too high": (adapter_tensors(out=16), {}, "shape_mismatch"),
    "transposed": (adapter_tensors("model.layers.0.self_attn.v_proj", out=8, inner=4), {}, "shape_mismatch"),
    "not gathered": ({**adapter_tensors(), f"base_model.model.{Q}.lora_A.weight": numbers(0)}, {}, "shape_mismatch"),
    "a norm of another size": (
        {**adapter_tensors(), "base_model.model.model.norm.weight": numbers(9)},
        {"modules_to_save": ["norm"]},
        "shape_mismatch",
    ),
    "a saved module is missing": (None, {"modules_to_save": ["lm_head"]}, "modules_to_save_missing"),
    "another method": (None, {"peft_type": "IA3"}, "unsupported_adapter"),
    "the base was changed": (None, {"init_lora_weights": "pissa_niter_4"}, "unsupported_adapter"),
    "a layer computed otherwise": (None, {"use_qalora": True}, "unsupported_adapter"),
    "a rank of no sense": (None, {"r": "many"}, "adapter_config"),
    "a pattern of no sense": (None, {"rank_pattern": {"(": 3}}, "adapter_config"),
    "a pattern that runs away": (None, {"rank_pattern": {"(a+)+b": 3}}, "adapter_config"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_fit_is_named_and_nothing_is_merged(case: str, tmp_path: Path) -> None:
    tensors, config, kind = BAD[case]
    write_base(tmp_path / "base")
    write_adapter(tmp_path / "adapter", tensors, **config)
    result = look(tmp_path)
    assert kind in kinds(result) and result.code == 1
    assert all(finding.detail and finding.fix for finding in result.findings)


def test_a_good_pair_has_no_findings(tmp_path: Path) -> None:
    write_base(tmp_path / "base")
    write_adapter(tmp_path / "adapter")
    result = look(tmp_path)
    assert (result.code, result.findings, result.tensors_merged, result.dtype) == (0, [], 1, "fp32")
    assert not (tmp_path / "out").exists()


def test_all_problems_are_reported_not_the_first(tmp_path: Path) -> None:
    write_base(tmp_path / "base")
    tensors = {**adapter_tensors(r=3), **adapter_tensors("model.layers.9.self_attn.q_proj")}
    write_adapter(tmp_path / "adapter", drop(tensors, "9.self_attn.q_proj.lora_B.weight"))
    assert kinds(look(tmp_path)) >= {"lora_pair_incomplete", "rank_mismatch"}


def test_findings_stay_bounded(tmp_path: Path) -> None:
    write_base(tmp_path / "base")
    tensors = {}
    for layer in range(100):
        tensors.update(adapter_tensors(f"model.layers.{layer + 5}.self_attn.q_proj"))
    write_adapter(tmp_path / "adapter", tensors)
    [finding] = [f for f in look(tmp_path).findings if f.level == "error"]
    assert finding.count == 200 and len(finding.extra["names"]) == 20


# The base


def test_a_missing_part_of_the_base(tmp_path: Path) -> None:
    base = files.write_shards(tmp_path / "base", base_tensors())
    write_adapter(tmp_path / "adapter")
    assert look(tmp_path).code == 0
    (base / "model-00002-of-00005.safetensors").unlink()
    assert kinds(look(tmp_path)) == {"missing_shard"}
    (base / "model.safetensors.index.json").unlink()
    assert kinds(look(tmp_path)) == {"missing_shard"}


def test_an_index_that_does_not_fit_its_parts(tmp_path: Path) -> None:
    base = files.write_shards(tmp_path / "base", base_tensors())
    write_adapter(tmp_path / "adapter")
    index = json.loads((base / "model.safetensors.index.json").read_text())
    index["weight_map"]["model.layers.1.extra"] = "model-00001-of-00005.safetensors"
    (base / "model.safetensors.index.json").write_text(json.dumps(index))
    assert kinds(look(tmp_path)) == {"index_key_not_in_shard"}
    index["weight_map"] = {"model.norm.weight": "../../secret.safetensors"}
    (base / "model.safetensors.index.json").write_text(json.dumps(index))
    assert kinds(look(tmp_path)) == {"bad_json"}


def test_a_cut_file_and_an_empty_one(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base")
    adapter = write_adapter(tmp_path / "adapter")
    os.truncate(base / "model.safetensors", 900)
    (adapter / "adapter_model.safetensors").write_bytes(b"")
    assert kinds(look(tmp_path)) == {"truncated_safetensors", "zero_byte"}


def test_a_header_whose_length_looks_like_a_pickle_is_read(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base")
    write_adapter(tmp_path / "adapter")
    path = base / "model.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    padded = data[8 : 8 + length] + b" " * (0x480 - length)
    path.write_bytes((0x480).to_bytes(8, "little") + padded + data[8 + length :])
    assert path.read_bytes().startswith(b"\x80\x04")
    assert look(tmp_path).code == 0


def test_a_quantized_base_and_one_of_pickles(tmp_path: Path) -> None:
    write_base(tmp_path / "base", quantization_config={"quant_method": "bitsandbytes"})
    write_adapter(tmp_path / "adapter")
    assert kinds(look(tmp_path)) == {"quantized_base"}
    plain = write_base(tmp_path / "plain")
    (plain / "model.safetensors").rename(plain / "pytorch_model.bin")
    assert kinds(look(tmp_path, base=str(plain))) == {"unsupported_base"}


def test_where_the_base_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_adapter(tmp_path / "deep" / "adapter", base_model_name_or_path="models/base")
    source = Source(tmp_path / "deep" / "adapter")

    def place(**options: Any) -> Any:
        result = merge(source, tmp_path / "out", dry_run=True, **options)
        return result.base and Path(result.base), kinds(result)

    assert place() == (None, {"base_not_found"})
    beside = write_base(tmp_path / "deep" / "models" / "base")
    assert place() == (beside, set())
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    here = write_base(tmp_path / "here" / "models" / "base")
    assert place() == (here, set())
    assert place(base=str(beside)) == (beside, set())
    assert place(base=str(tmp_path / "nowhere")) == (None, {"base_not_found"})


def test_a_base_in_the_hubs_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("socket.socket.connect", lambda *args: pytest.fail("nothing may be asked of the network"))
    write_adapter(tmp_path / "adapter", base_model_name_or_path="org/model")
    [finding] = look(tmp_path).findings
    assert finding.kind == "base_not_found" and "ftui model get org/model" in finding.fix
    commit = "a" * 40
    model = write_base(tmp_path / "hub" / "models--org--model" / "snapshots" / commit)
    (tmp_path / "hub" / "models--org--model" / "refs").mkdir()
    (tmp_path / "hub" / "models--org--model" / "refs" / "main").write_text(commit)
    assert look(tmp_path).base == str(model)


# Embeddings


def tied(tmp_path: Path, tensors: dict[str, Any], **config: Any) -> tuple[Result, dict[str, Any]]:
    """The decision about a tied base, and the config that the merged model would have."""
    from engine.merge import adapter, base
    from engine.merge.plan import draw
    from engine.merge.report import Report

    write_base(tmp_path / "base", drop(base_tensors(), "lm_head.weight"), tie_word_embeddings=True)
    write_adapter(tmp_path / "adapter", tensors, **config)
    report = Report()
    read, model = adapter.read(tmp_path / "adapter", report), base.read(tmp_path / "base", report)
    assert read and model
    plan = draw(model, read, None, report)
    return look(tmp_path), {**plan.config, "names": {out.name: out for out in plan.outputs}}


def test_a_head_of_its_own_unties_the_embeddings(tmp_path: Path) -> None:
    saved = {**adapter_tensors(), "base_model.model.lm_head.weight": numbers(16, 8) * 2}
    result, config = tied(tmp_path, saved, modules_to_save=["lm_head"])
    assert kinds(result, "warning") == {"tied_embeddings_untied"} and result.tensors_merged == 2
    assert config["tie_word_embeddings"] is False
    assert config["names"]["lm_head.weight"].changed and not config["names"]["model.embed_tokens.weight"].changed


def test_an_equal_head_leaves_them_tied(tmp_path: Path) -> None:
    new = numbers(16, 8) * 2
    saved = {"base_model.model.lm_head.weight": new, "base_model.model.model.embed_tokens.weight": new}
    result, config = tied(tmp_path, saved, modules_to_save=["lm_head", "embed_tokens"])
    assert not kinds(result, "warning") - {"lora_module_missing"} and config["tie_word_embeddings"] is True
    assert "lm_head.weight" not in config["names"]


def test_lora_on_the_input_embedding_alone_unties_them(tmp_path: Path) -> None:
    key = "base_model.model.model.embed_tokens.lora_embedding"
    lora = {f"{key}_A": numbers(4, 16), f"{key}_B": numbers(8, 4)}
    result, config = tied(tmp_path, lora, target_modules=["embed_tokens"])
    assert kinds(result, "warning") == {"tied_embeddings_untied"}
    head = config["names"]["lm_head.weight"]
    assert head.ops == [] and head.source == config["names"]["model.embed_tokens.weight"].source


def test_a_grown_vocabulary_is_told_and_kept(tmp_path: Path) -> None:
    saved = {**adapter_tensors(), "base_model.model.model.embed_tokens.weight": numbers(18, 8)}
    result, config = tied(tmp_path, saved)
    assert kinds(result, "warning") == {"vocab_resized"} and result.code == 0
    assert config["vocab_size"] == 18 and config["tie_word_embeddings"] is True


def test_a_grown_input_beside_an_old_output(tmp_path: Path) -> None:
    write_base(tmp_path / "base")
    write_adapter(tmp_path / "adapter", {"base_model.model.model.embed_tokens.weight": numbers(18, 8)})
    assert kinds(look(tmp_path)) == {"shape_mismatch"}


def test_lora_for_another_number_of_tokens(tmp_path: Path) -> None:
    write_base(tmp_path / "base")
    write_adapter(tmp_path / "adapter", adapter_tensors("lm_head", out=18))
    result = look(tmp_path)
    assert kinds(result) == {"shape_mismatch"} and "vocab_resized" in kinds(result, "warning")


def test_a_tokenizer_larger_than_the_embedding(tmp_path: Path) -> None:
    write_base(tmp_path / "base")
    adapter = write_adapter(tmp_path / "adapter")
    tokenizer = {"model": {"vocab": {"a": 0, "b": 15}}, "added_tokens": [{"id": 15}]}
    (adapter / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert not look(tmp_path).findings
    tokenizer["added_tokens"] = [{"id": 16, "content": "<new>"}]
    (adapter / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert kinds(look(tmp_path), "warning") == {"vocab_resized"}


# Types and names


def test_a_type_kept_on_purpose_is_kept(tmp_path: Path) -> None:
    from engine.merge import adapter, base
    from engine.merge.plan import draw
    from engine.merge.report import Report

    tensors = {k: v.astype(np.float16) if k != "model.norm.weight" else v for k, v in base_tensors().items()}
    write_base(tmp_path / "base", tensors, torch_dtype="float16")
    write_adapter(tmp_path / "adapter")
    report = Report()
    read, model = adapter.read(tmp_path / "adapter", report), base.read(tmp_path / "base", report)
    assert read and model
    plan = draw(model, read, "BF16", report)
    types = {out.name: out.dtype for out in plan.outputs}
    assert types.pop("model.norm.weight") == "F32" and set(types.values()) == {"BF16"}
    assert plan.config["torch_dtype"] == "bfloat16"


@pytest.mark.parametrize("prefix", ["", "language_model."])
def test_files_that_leave_a_prefix_out(prefix: str, tmp_path: Path) -> None:
    tensors = {prefix + name.removeprefix("model."): value for name, value in base_tensors().items()}
    write_base(tmp_path / "base", tensors)
    module = Q if not prefix else f"language_model.{Q.removeprefix('model.')}"
    write_adapter(tmp_path / "adapter", adapter_tensors(module))
    assert look(tmp_path).code == 0


def test_part_of_the_layers_without_an_adapter_is_worth_a_word(tmp_path: Path) -> None:
    write_base(tmp_path / "base")
    write_adapter(tmp_path / "adapter", target_modules=["q_proj", "v_proj"])
    result = look(tmp_path)
    assert kinds(result, "warning") == {"lora_module_missing"} and result.code == 0


# The place


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    write_base(tmp_path / "base")
    write_adapter(tmp_path / "adapter")
    (tmp_path / "out").mkdir()
    assert look(tmp_path).code == 0  # an empty folder may be filled
    (tmp_path / "out" / "precious").write_text("")
    with pytest.raises(UsageError, match="nothing is overwritten"):
        look(tmp_path)
    with pytest.raises(UsageError, match="lies inside"):
        merge(Source(tmp_path / "adapter"), tmp_path / "base" / "merged", dry_run=True)


def test_too_little_room_is_said_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_base(tmp_path / "base")
    write_adapter(tmp_path / "adapter")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 1000))  # type: ignore[attr-defined]
    with pytest.raises(DoesNotFit):
        merge(Source(tmp_path / "adapter"), tmp_path / "new" / "out")
    assert not (tmp_path / "new").exists()


def test_a_staging_folder_is_never_left_and_a_dead_ones_is_taken_over(tmp_path: Path) -> None:
    out = tmp_path / "place" / "out"
    dead = tmp_path / "place" / ".merge-out"
    dead.mkdir(parents=True)
    (dead / "half").write_text("")
    with pytest.raises(RuntimeError), folders.staging(out) as staging:
        assert staging == dead and not any(staging.iterdir())
        (staging / "file").write_text("")
        with pytest.raises(UsageError, match="another merge"), folders.staging(out):
            pass
        raise RuntimeError
    assert not any(out.parent.iterdir())


def test_what_comes_along(tmp_path: Path) -> None:
    base, adapter, target = write_base(tmp_path / "base"), write_adapter(tmp_path / "adapter"), tmp_path / "target"
    target.mkdir()
    for name in ("LICENSE", "generation_config.json", "tokenizer.json", "merges.txt", "modeling_own.py", "README.md"):
        (base / name).write_text("base")
    (base / ".cache").write_text("")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "training_args.bin"):
        (adapter / name).write_text("adapter")
    folders.bring_along(base, adapter, target)
    assert {path.name: path.read_text() for path in target.iterdir()} == {
        "LICENSE": "base", "generation_config.json": "base", "modeling_own.py": "base", "tokenizer.json": "adapter",
        "tokenizer_config.json": "adapter", "chat_template.jinja": "adapter",
    }  # fmt: skip


# The command


def test_the_command_names_every_key_of_the_contract(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_base(tmp_path / "base")
    adapter = write_adapter(tmp_path / "adapter", r=8)
    argv = ["merge", str(adapter), "--out", str(tmp_path / "out"), "--dry-run"]
    assert main([*argv, "--json"]) == 1
    document = json.loads(capfd.readouterr().out)
    contract = {"out", "dtype", "tensors_merged", "peak_rss_bytes", "seconds", "max_abs_diff", "verified", "findings"}
    assert contract <= document.keys() and document["findings"][0]["kind"] == "rank_mismatch"
    assert main(argv) == 1
    assert "rank 8" in capfd.readouterr().out


def test_what_is_no_adapter(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "ft")
    whole = write_base(tmp_path / "whole")
    with pytest.raises(UsageError, match="nothing to merge"):
        find(workspace, str(whole))
    with pytest.raises(UsageError, match="is not a folder"):
        find(workspace, str(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match="there is no run"):
        find(workspace, "nobody")
