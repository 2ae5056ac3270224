"""Each kind of damage to a checkpoint, made by hand, and what is said about it."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.checkpoint import manifest, verify
from tests.support.checkpoints import (
    LORA,
    adapter,
    floats,
    pickled,
    safetensors,
    torch_zip,
    with_header,
    write_checkpoint,
)

A = LORA.format("q", "A")
B = LORA.format("q", "B")
WEIGHTS = "adapter_model.safetensors"
Change = Callable[[Path], object]


def weights(content: bytes) -> Change:
    return lambda folder: (folder / WEIGHTS).write_bytes(content)


def header(entries: object, data: bytes = bytes(16)) -> Change:
    return weights(with_header(json.dumps(entries).encode(), data))


def write(name: str, content: bytes | str) -> Change:
    def change(folder: Path) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)

    return change


def remove(*names: str) -> Change:
    return lambda folder: [(folder / name).unlink() for name in names]


def cut(name: str, n: int) -> Change:
    return lambda folder: os.truncate(folder / name, (folder / name).stat().st_size - n)


def link(name: str, target: str) -> Change:
    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target)

    return change


def full_model(*parts: str, weight_map: dict[str, str], total: int = 2) -> Change:
    """A full model in numbered parts, each with a tensor named like its number."""

    def change(folder: Path) -> None:
        (folder / WEIGHTS).unlink()
        (folder / "adapter_config.json").unlink()
        (folder / "config.json").write_text(json.dumps({"hidden_size": 4}))
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
        for part in parts:
            tensors = {f"t{part}": ("F32", [1], floats(1.0))}
            (folder / f"model-0000{part}-of-0000{total}.safetensors").write_bytes(safetensors(tensors))

    return change


PART = "model-0000{}-of-00002.safetensors".format
ENTRY = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
GOOD = safetensors(adapter())

BROKEN = {
    "zero byte json": (write("trainer_state.json", ""), "zero_byte"),
    "zero byte weights": (weights(b""), "zero_byte"),
    "zero byte optimizer": (write("optimizer.pt", ""), "zero_byte"),
    "no optimizer": (remove("optimizer.pt"), "missing_file"),
    "no optimizer in its file": (write("optimizer.pt", torch_zip(pickled({"last_epoch": 20}))), "wrong_content"),
    "a list for an optimizer": (write("optimizer.pt", torch_zip(pickled([1]))), "wrong_content"),
    "marked as incomplete": (write("checkpoint-is-incomplete.txt", ""), "incomplete_save"),
    "state with a byte order mark": (write("trainer_state.json", b'\xef\xbb\xbf{"global_step": 20}'), "bad_json"),
    "state in UTF-16": (write("trainer_state.json", '{"global_step": 20}'.encode("utf-16")), "bad_json"),
    "a tensor twice": (
        weights(with_header(b'{"a":%s,"a":%s}' % ((json.dumps(ENTRY).encode(),) * 2), bytes(16))),
        "safetensors_header_json",
    ),
    "no scheduler": (remove("scheduler.pt"), "missing_file"),
    "no weights": (remove(WEIGHTS), "missing_file"),
    "no adapter config": (remove("adapter_config.json"), "missing_file"),
    "state cut": (cut("trainer_state.json", 3), "bad_json"),
    "state a list": (write("trainer_state.json", "[]"), "bad_json"),
    "deep json": (write("adapter_config.json", "[" * 100_000), "bad_json"),
    "json of latin-1": (write("tokenizer_config.json", b'{"a": "\xe9"}'), "bad_json"),
    "another step": (write("trainer_state.json", '{"global_step": 9}'), "step_mismatch"),
    "no step": (write("trainer_state.json", "{}"), "step_mismatch"),
    "data cut": (cut(WEIGHTS, 1), "truncated_safetensors"),
    "header cut": (weights(GOOD[:100]), "truncated_safetensors"),
    "three bytes": (weights(b"abc"), "truncated_safetensors"),
    "huge header": (weights(struct.pack("<Q", 2**60) + b"{}" + bytes(60)), "safetensors_header_length"),
    "header longer than the file": (weights(struct.pack("<Q", 5000) + b"{}" + bytes(60)), "safetensors_header_length"),
    "header of nothing": (weights(bytes(100)), "safetensors_header_length"),
    "header not json": (weights(with_header(b"{'a': 1}", b"")), "safetensors_header_json"),
    "offsets backwards": (header({"a": {**ENTRY, "data_offsets": [16, 0]}}), "safetensors_header_json"),
    "offset not a number": (header({"a": {**ENTRY, "data_offsets": ["0", 16]}}), "safetensors_header_json"),
    "negative shape": (header({"a": {**ENTRY, "shape": [-4]}}), "safetensors_header_json"),
    "entry not an object": (header({"a": 3}), "safetensors_header_json"),
    "unknown type": (header({"a": {**ENTRY, "dtype": "F37"}}), "safetensors_dtype"),
    "a hole": (header({"a": {**ENTRY, "data_offsets": [16, 32]}}, bytes(32)), "safetensors_hole"),
    "an overlap": (header({"a": ENTRY, "b": {**ENTRY, "data_offsets": [8, 24]}}, bytes(24)), "safetensors_overlap"),
    "shape against size": (header({"a": {**ENTRY, "shape": [5]}}), "safetensors_size_mismatch"),
    "endless shape": (header({"a": {**ENTRY, "shape": [2**62] * 5000}}), "safetensors_size_mismatch"),
    "bytes after": (header({"a": ENTRY}, bytes(17)), "safetensors_trailing_bytes"),
    "a zip": (weights(torch_zip(pickled({}))), "safetensors_not"),
    "a pointer of LFS": (weights(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"), "safetensors_not"),
    "a web page": (weights(b"<!DOCTYPE html><html></html>"), "safetensors_not"),
    "noise": (weights(bytes(range(200, 255)) * 3), "safetensors_not"),
    "header of a list": (weights(with_header(b"[1, 2]", b"")), "safetensors_header_json"),
    "an old pickle": (write("optimizer.pt", b"cos\nsystem\n(S'true'\ntR."), "unsafe_pickle"),
    "text": (weights(b"Entry not found, and some more of it"), "safetensors_not"),
    "empty tensors": (weights(safetensors({A: ("F32", [0], b""), B: ("F32", [0], b"")})), "empty_tensor"),
    "nan": (weights(safetensors({**adapter(), "x": ("F32", [2], floats(1, float("nan")))})), "non_finite_weights"),
    "infinity": (weights(safetensors({**adapter(), "x": ("F16", [1], b"\x00\x7c")})), "non_finite_weights"),
    "nan in bf16": (weights(safetensors({**adapter(), "x": ("BF16", [1], b"\xc0\x7f")})), "non_finite_weights"),
    "nan in fp8": (weights(safetensors({**adapter(), "x": ("F8_E4M3", [2], b"\x00\xff")})), "non_finite_weights"),
    "infinity in fp8": (weights(safetensors({**adapter(), "x": ("F8_E5M2", [1], b"\x7c")})), "non_finite_weights"),
    "ranks of A and B": (
        weights(safetensors({A: ("F32", [2, 4], bytes(32)), B: ("F32", [4, 3], floats(*range(12)))})),
        "shape_mismatch",
    ),
    "rank of the config": (weights(safetensors(adapter(rank=3))), "shape_mismatch"),
    "zip cut": (cut("optimizer.pt", 30), "truncated_zip"),
    "zip of nothing": (write("optimizer.pt", bytes(500)), "truncated_zip"),
    "pickle cut": (write("scheduler.pt", torch_zip(pickled({"a": "b"})[:-4])), "truncated_zip"),
    "zip without a pickle": (write("scheduler.pt", torch_zip(b"").replace(b"data.pkl", b"date.pkl")), "truncated_zip"),
    "a bomb in a pickle": (write("scheduler.pt", torch_zip(b"\x80\x02}r\xff\xff\xff\x7f.")), "truncated_zip"),
    "system": (write("optimizer.pt", torch_zip(b"cos\nsystem\n(S'true'\ntR.")), "unsafe_pickle"),
    "eval": (write("training_args.bin", torch_zip(b"cbuiltins\neval\n(S'1'\ntR.")), "unsafe_pickle"),
    "by names on the stack": (
        write("optimizer.pt", torch_zip(b"\x80\x04\x8c\x05posix\x94\x8c\x06system\x94\x93.")),
        "unsafe_pickle",
    ),
    "a function of a library": (write("optimizer.pt", torch_zip(b"ctorch.hub\nload\n(S'x'\ntR.")), "unsafe_pickle"),
    "a plain pickle": (write("scheduler.pt", b"\x80\x02csubprocess\nrun\n."), "unsafe_pickle"),
    "a part missing": (full_model("1", weight_map={"t1": PART(1), "t2": PART(2)}), "missing_shard"),
    "a part the index does not name": (full_model("1", weight_map={"t1": PART(1)}), "missing_shard"),
    "a key of no part": (full_model("1", "2", weight_map={"t1": PART(1), "x": PART(2)}), "index_key_not_in_shard"),
    "an index of nothing": (write("model.safetensors.index.json", "{}"), "bad_json"),
    "an index that leaves": (
        write("model.safetensors.index.json", '{"weight_map": {"a": "../../x.safetensors"}}'),
        "bad_json",
    ),
    "link to nowhere": (link("optimizer.pt", "/nowhere/optimizer.pt"), "dangling_symlink"),
    "link to itself": (link("optimizer.pt", "optimizer.pt"), "symlink_loop"),
    "dcp without metadata": (write("pytorch_model_fsdp_0/__0_0.distcp", b"x"), "missing_file"),
    "dcp with bad metadata": (write("pytorch_model_fsdp_0/.metadata", b"\x80\x02}."), "truncated_shard"),
    "manifest of nothing": (write("MANIFEST.json", "{}"), "bad_json"),
    "manifest not json": (write("MANIFEST.json", "{"), "bad_json"),
    "manifest names more": (
        write("MANIFEST.json", '{"files": {"gone": {"size": 1, "sha256": "00"}}}'),
        "missing_file",
    ),
    "manifest of another size": (
        write("MANIFEST.json", '{"files": {"optimizer.pt": {"size": 1, "sha256": "00"}}}'),
        "hash_mismatch",
    ),
    "manifest of another hash": (
        write("MANIFEST.json", '{"files": {"trainer_state.json": {"sha256": "00"}}}'),
        "hash_mismatch",
    ),
    "manifest of another step": (write("MANIFEST.json", '{"step": 3, "files": {}}'), "step_mismatch"),
    "manifest that leaves": (write("MANIFEST.json", '{"files": {"../x": {"size": 1}}}'), "bad_json"),
}  # fmt: skip

NOT_EXACT = {
    "no random state": (remove("rng_state.pth"), "missing_rng"),
    "schedule of another step": (
        write("scheduler.pt", torch_zip(pickled({"last_epoch": 10, "lr_lambdas": [None]}))),
        "step_mismatch",
    ),
    "random state of one rank of several": (
        lambda folder: (folder / "rng_state.pth").rename(folder / "rng_state_0.pth"),
        "rng_rank_mismatch",
    ),
    "a gap in the ranks": (
        lambda folder: [write(f"rng_state_{n}.pth", torch_zip(pickled({})))(folder) for n in (0, 2)],
        "rng_rank_mismatch",
    ),
    "fewer than the manifest says": (
        write("MANIFEST.json", '{"world_size": 4, "files": {}}'),
        "rng_rank_mismatch",
    ),
    "B all zero": (weights(safetensors(adapter(zero_b=True))), "zero_lora_b"),
    "an optimizer of nobody": (write("optimizer.pt", torch_zip(b"cmine\nState\n.")), "unsafe_pickle"),
}  # fmt: skip

FINE = {
    "links up": (link("again", "."), "inner_loop"),
    "links to the folder above": (link("up", ".."), "inner_loop"),
    "a link kept as a file": (write("again", "../checkpoint-20"), "inner_loop"),
    "a class of the script": (write("training_args.bin", torch_zip(b"c__main__\nArguments\n.")), "unsafe_pickle"),
    "a file after the seal": (write("MANIFEST.json", '{"files": {}}'), "unlisted_file"),
}  # fmt: skip


def only(folder: Path) -> verify.Checked:
    checked = verify.verify(folder).checkpoints
    assert len(checked) == 2
    return checked[1]


@pytest.fixture
def output(tmp_path):
    write_checkpoint(tmp_path / "checkpoint-10", 10)
    write_checkpoint(tmp_path / "checkpoint-20", 20)
    return tmp_path


@pytest.mark.parametrize("name", BROKEN)
def test_broken(name, output):
    change, kind = BROKEN[name]
    change(output / "checkpoint-20")
    report = verify.verify(output)
    checked = report.checkpoints[1]
    assert (kind, "error") in {(f.kind, f.level) for f in checked.findings}
    assert (checked.state, checked.resumable) == ("broken", False)
    assert report.resume_from is report.checkpoints[0]
    assert report.exit_code == 1


@pytest.mark.parametrize("name", NOT_EXACT)
def test_not_exact(name, output):
    change, kind = NOT_EXACT[name]
    change(output / "checkpoint-20")
    report = verify.verify(output)
    checked = report.checkpoints[1]
    assert (kind, "warning") in {(f.kind, f.level) for f in checked.findings}
    assert not [f for f in checked.findings if f.level == "error"]
    assert (checked.state, checked.resumable, checked.exact) == ("broken", True, False)
    assert report.resume_from is report.checkpoints[0]


@pytest.mark.parametrize("name", FINE)
def test_worth_a_word_only(name, output):
    change, kind = FINE[name]
    change(output / "checkpoint-20")
    report = verify.verify(output)
    assert kind in {f.kind for f in report.checkpoints[1].findings}
    assert report.checkpoints[1].state == "complete"
    assert report.resume_from is report.checkpoints[1]
    assert report.exit_code == 0


def test_an_inexact_one_is_better_than_none(tmp_path):
    folder = write_checkpoint(tmp_path / "checkpoint-10", 10)
    (folder / "rng_state.pth").unlink()
    report = verify.verify(tmp_path)
    assert report.resume_from is report.checkpoints[0]
    assert report.exit_code == 1


def test_nothing_to_resume_from(tmp_path):
    assert verify.verify(tmp_path).exit_code == 4
    (write_checkpoint(tmp_path / "checkpoint-10", 10) / "optimizer.pt").unlink()
    assert verify.verify(tmp_path).exit_code == 4


def test_shapes_of_another_run(output):
    (output / "checkpoint-20" / WEIGHTS).write_bytes(safetensors(adapter(rank=3)))
    (output / "checkpoint-20" / "adapter_config.json").write_text('{"r": 3}')
    assert [(f.kind, f.level) for f in only(output).findings] == [("shape_mismatch", "warning")]


def test_other_shapes_under_the_same_configuration(output):
    (output / "checkpoint-20" / WEIGHTS).write_bytes(safetensors(adapter(width=8)))
    assert [(f.kind, f.level) for f in only(output).findings] == [("shape_mismatch", "error")]


def test_links_kept_as_files(output):
    """As git and many copying tools leave them where there are no links."""
    for step, target in ((30, "checkpoint-40"), (40, "checkpoint-30"), (50, "gone"), (60, "checkpoint-20")):
        (output / f"checkpoint-{step}").write_text(target)
    (output / "checkpoint-70").write_text("just a file\n")
    kinds = [[f.kind for f in entry.findings] for entry in verify.verify(output).checkpoints[2:]]
    assert kinds == [["symlink_loop"], ["symlink_loop"], ["dangling_symlink"], ["not_a_folder"], ["not_a_folder"]]


def test_learning_rate_of_the_first_step(tmp_path):
    """In the first step of a warm-up the learning rate is 0: B is zero and nothing is wrong."""
    folder = write_checkpoint(tmp_path / "checkpoint-1", 1)
    (folder / WEIGHTS).write_bytes(safetensors(adapter(zero_b=True)))
    assert verify.verify(tmp_path).checkpoints[0].state == "complete"


@pytest.mark.parametrize(
    "name",
    [".staging-30", "checkpoint-30.tmp", "tmp-checkpoint-30", ".retired-checkpoint-30", "checkpoint-30-partial"],
)
def test_staging_names(name, output):
    (output / name).mkdir()
    entry = verify.verify(output).checkpoints[2]
    assert (entry.step, entry.state, entry.resumable) == (30, "staging", False)


@pytest.mark.parametrize(
    "name",
    ["checkpoint-", "checkpoint--5", "checkpoint-1e3", "checkpoint-٣", "checkpoint-" + "9" * 30, "Checkpoint-40",
     "checkpoint-40 ", "checkpoint-40\n", "checkpoint-40 (copy)", "my checkpoints", b"checkpoint-\xff"],
)  # fmt: skip
def test_foreign_names(name, output):
    os.mkdir(os.path.join(os.fsencode(output), os.fsencode(name)))
    report = verify.verify(output)
    assert [entry.state for entry in report.checkpoints] == ["complete", "complete", "foreign"]
    assert report.exit_code == 0
    json.dumps(report.to_json()).encode()  # no lone surrogates


def test_a_pipe_is_not_opened(output):
    (output / "checkpoint-20" / "optimizer.pt").unlink()
    os.mkfifo(output / "checkpoint-20" / "optimizer.pt")
    assert only(output).findings[0].kind == "missing_file"


def test_links_between_checkpoints(output):
    (output / "checkpoint-30").symlink_to("checkpoint-40")
    (output / "checkpoint-40").symlink_to("checkpoint-30")
    (output / "checkpoint-50").symlink_to("checkpoint-99")
    (output / "checkpoint-60").symlink_to("checkpoint-20")
    (output / "checkpoint-latest").symlink_to("checkpoint-20")
    kinds = {entry.path.name: {f.kind for f in entry.findings} for entry in verify.verify(output).checkpoints}
    assert kinds["checkpoint-30"] == kinds["checkpoint-40"] == {"symlink_loop"}
    assert kinds["checkpoint-50"] == {"dangling_symlink"}
    assert kinds["checkpoint-60"] == {"step_mismatch"}
    assert kinds["checkpoint-latest"] == {"not_a_checkpoint_name"}


def test_one_checkpoint_alone(output):
    assert verify.verify(output / "checkpoint-20").resume_from is not None
    (output / "checkpoint-20").rename(output / "best")
    report = verify.verify(output / "best")
    assert [entry.step for entry in report.checkpoints] == [20]


def test_a_folder_that_holds_the_folder_of_checkpoints(output):
    """A run's folder as a backup of it may be: without its recipe."""
    (output / "checkpoints").mkdir()
    (output / "checkpoint-20").rename(output / "checkpoints" / "checkpoint-20")
    (output / "checkpoint-10").rename(output / "checkpoints" / "checkpoint-10")
    assert [entry.state for entry in verify.verify(output).checkpoints] == ["complete", "complete"]


def test_findings_stay_few(output):
    entries = {f"t{n}": {**ENTRY, "dtype": "F37"} for n in range(5000)}
    header(entries)(output / "checkpoint-20")
    checked = only(output)
    assert len(json.dumps(checked.to_json())) < 10_000
    assert {f.kind: f.count for f in checked.findings}["safetensors_dtype"] == 5000


def sealed_run(root: Path, *steps: int) -> Path:
    (root / "resolved.json").write_text("{}")
    for step in steps:
        staging = write_checkpoint(root / "checkpoints" / f".staging-{step}", step)
        manifest.seal(staging, root / "checkpoints" / f"checkpoint-{step}", {"step": step})
    return root


def test_in_a_run_of_ours_only_sealed_ones_count(tmp_path):
    run = sealed_run(tmp_path, 10, 20)
    write_checkpoint(run / "checkpoints" / "checkpoint-30", 30)
    report = verify.verify(run)
    assert [entry.state for entry in report.checkpoints] == ["complete", "complete", "foreign"]
    assert report.resume_from is report.checkpoints[1]
    assert report.exit_code == 0
