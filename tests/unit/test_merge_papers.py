"""What goes along with a merged model: its license's duties, the evaluation's scores; and sizes, weights, GGUF."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import yaml

from engine.errors import FtuiError, UsageError
from engine.merge import base as bases
from engine.merge import card, gguf, license
from engine.merge.report import Report
from engine.merge.run import merge
from engine.merge.source import Source
from engine.workspace import RunFolder
from tests.support.merge_files import write_adapter, write_base
from tui.cli import main
from tui.commands.merge import _size, _weighed

LLAMA = "LLAMA 3.1 COMMUNITY LICENSE AGREEMENT\nLlama 3.1 Version Release Date: July 23, 2024\n"
QWEN = "Qwen LICENSE AGREEMENT\n\nQwen LICENSE AGREEMENT Release Date: September 19, 2024\n"
APACHE = "                                 Apache License\n                           Version 2.0, January 2004\n"
MIT = "MIT License\n\nCopyright (c) 2023 DeepSeek\n\nPermission is hereby granted, free of charge, to any person\n"
RECOGNIZED = {
    "llama card": ({"license": "llama3.1"}, None, "llama", "Llama"),
    "llama 3 card": ({"license": "llama3"}, None, "llama", "Llama 3"),
    "llama 4, other": ({"license": "other", "license_name": "llama4"}, None, "llama", "Llama"),
    "llama 2": ({"license": "llama2"}, None, "llama", None),
    "llama text": (None, LLAMA, "llama", "Llama"),
    "card before text": ({"license": "apache-2.0"}, LLAMA, "apache", None),
    "gemma": ({"license": "gemma"}, None, "gemma", None),
    "qwen": ({"license": "other", "license_name": "qwen"}, None, "qwen", None),
    "qwen text": ({"license": "other"}, QWEN, "qwen", None),
    "mistral": ({"license": "other", "license_name": "mrl"}, None, "mistral", None),
    "apache text": (None, APACHE, "apache", None),
    "mit text": (None, MIT, "mit", None),
    "mit card": ({"license": "mit"}, None, "mit", None),
    "a list": ({"license": ["apache-2.0"]}, None, "apache", None),
    "others": ({"license": "cc-by-nc-4.0"}, None, "other", None),
    "nothing": (None, None, "unknown", None),
    "not a card": ({"license": 3}, None, "unknown", None),
}


def base_with(folder: Path, front: object, text: str | None) -> bases.Base:
    write_base(folder)
    if front is not None:
        (folder / "README.md").write_text(f"---\n{yaml.safe_dump(front)}---\n# Base\n")
    if text is not None:
        (folder / "LICENSE.txt").write_text(text)
    found = bases.read(folder, Report())
    assert found is not None
    return found


@pytest.mark.parametrize("case", RECOGNIZED)
def test_licenses_are_recognized(case: str, tmp_path: Path) -> None:
    front, text, family, prefix = RECOGNIZED[case]
    terms = license.of(base_with(tmp_path / "base", front, text), ["base"], tmp_path)
    assert (terms.family, terms.prefix) == (family, prefix)
    assert bool(terms.duties) == (family != "unknown")


def test_the_record_of_a_fetched_model_and_a_name_tell_too(tmp_path: Path) -> None:
    base = base_with(tmp_path / "base", None, None)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "some--thing.json").write_text(json.dumps({"license": "gemma"}))
    assert license.of(base, ["some/thing"], tmp_path).family == "gemma"
    assert license.of(base, ["meta-llama/Llama-3.3-70B-Instruct"], tmp_path).shows == "Built with Llama"
    assert license.of(base, ["Qwen/Qwen3-8B"], tmp_path).family == "unknown"  # Qwen's licenses are several


@pytest.mark.parametrize(
    ("name", "front", "warned"),
    [
        ("support", "llama3.1", True),
        ("Llama-3.1-8B-support", "llama3.1", False),
        ("llama_support", "llama3.1", False),
        ("my-llama", "llama3.1", True),
        ("Llama-support", "llama3", True),
        ("Llama-3-support", "llama3", False),
        ("support", "apache-2.0", False),
    ],
)
def test_a_name_that_the_license_forbids_is_said(name: str, front: str, warned: bool, tmp_path: Path) -> None:
    base_with(tmp_path / "base", {"license": front}, None)
    write_adapter(tmp_path / "adapter")
    result = merge(Source(tmp_path / "adapter"), tmp_path / name, dry_run=True)
    assert result.code == 0
    assert ("license_name" in {finding.kind for finding in result.findings}) == warned


def test_the_card_shows_duties_and_scores(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    folder = run.path / "evaluation" / "step-20"
    folder.mkdir(parents=True)
    metric = {"name": "exact_match", "set": "held_out", "rows": 50, "base": {"value": 0.1}, "tuned": {"value": 0.8}}
    gate = {"expr": "exact_match >= 80 %", "value": 0.8, "limit": 0.8, "passed": True}
    for time, passed in ((1.0, False), (2.0, True)):
        report = {"time": time, "step": 20, "passed": passed, "gates": [gate], "metrics": [metric]}
        (run.path / "evaluation" / f"step-{20 if passed else 'old'}").mkdir(exist_ok=True)
        target = run.path / "evaluation" / ("step-20" if passed else "step-old") / "report.json"
        target.write_text(json.dumps(report))
    found = card.evaluation(run, 20)
    assert found is not None and found["passed"] and card.evaluation(run, 21) is None
    terms = license.of(base_with(tmp_path / "base", {"license": "llama3.2"}, None), ["base"], None)
    document = {
        "base": {"name": "base"}, "adapter": {"r": 4, "lora_alpha": 8, "step": 20}, "dtype": "bf16",
        "license": terms.to_json(), "evaluation": found, "adapters": [{"path": "/a/one", "weight": 0.5}],
    }  # fmt: skip
    out = tmp_path / "out"
    out.mkdir()
    card.write(out, document)
    text = (out / "README.md").read_text()
    assert "**Built with Llama**" in text and 'begins with "Llama"' in text and "license: llama3.2" in text
    assert "| exact_match (held_out) | 50 | 0.1 | 0.8 |" in text and "gates passed: `exact_match >= 80 %`" in text
    assert "`one` x 0.5" in text
    assert (out / "NOTICE").read_text().startswith("Llama 3.2 is licensed under the Llama 3.2 Community License")


def test_sizes_and_weights() -> None:
    assert [_size(text) for text in ("5GB", "500mb", "1.5 GiB", "300")] == [5 * 10**9, 5 * 10**8, 3 * 2**29, 300]
    assert _weighed("a=b/c=-0.5") == ("a=b/c", -0.5)
    for bad in ("", "GB", "-1GB", "0", "5XB"):
        with pytest.raises(UsageError):
            _size(bad)
    for bad in ("dir", "dir=", "=1", "dir=nan", "dir=x"):
        with pytest.raises(UsageError):
            _weighed(bad)


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"modules_to_save": ["lm_head"]}, "unsupported_adapter"),
        ({"bias": "all"}, "unsupported_adapter"),
        ({"r": 8}, "rank_mismatch"),
        ({"peft_type": "IA3"}, "unsupported_adapter"),
    ],
)
def test_what_cannot_be_added_to_other_adapters_is_named(config: dict[str, object], kind: str, tmp_path: Path) -> None:
    write_base(tmp_path / "base")
    write_adapter(tmp_path / "adapter")
    write_adapter(tmp_path / "other", **config)
    more = [(Source(tmp_path / "other"), 0.5)]
    result = merge(Source(tmp_path / "adapter"), tmp_path / "out", more=more, dry_run=True)
    assert result.code == 1 and kind in {finding.kind for finding in result.findings}


def test_how_the_base_was_quantized_must_be_known(tmp_path: Path) -> None:
    write_base(tmp_path / "base")
    write_adapter(tmp_path / "adapter")
    result = merge(Source(tmp_path / "adapter"), tmp_path / "out", quantized="run", dry_run=True)
    assert [finding.kind for finding in result.findings] == ["quantized_base"]
    result = merge(Source(tmp_path / "adapter"), tmp_path / "out", quantized="nf4", dry_run=True)
    assert result.quantized_base == {"type": "nf4", "nested": False, "dtype": "F32"}


CONVERTER = """#!{python}
import sys
from pathlib import Path
folder, _flag, out, _other, kind = sys.argv[1:]
if kind == "q8_0":
    Path(out).write_bytes(b"half")
    print("ValueError: it does not know this model")
    sys.exit(1)
Path(out).write_bytes(b"GGUF" + kind.encode())
"""


def test_gguf_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "merged"
    folder.mkdir()
    script = tmp_path / "bin" / gguf.SCRIPT
    script.parent.mkdir()
    monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(FtuiError) as missing:
        gguf.command()
    assert missing.value.kind == "no_converter"
    script.write_text(CONVERTER.format(python=sys.executable))
    script.chmod(0o755)
    made = gguf.convert(gguf.command(), folder, "f16")
    assert made == folder / "merged.gguf" and made.read_bytes() == b"GGUFf16"
    made.unlink()
    with pytest.raises(FtuiError, match="does not know this model") as failed:
        gguf.convert(gguf.command(), folder, "q8_0")
    assert failed.value.kind == "gguf_failed" and list(folder.iterdir()) == []


def test_without_a_converter_nothing_is_merged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_base(tmp_path / "base")
    write_adapter(tmp_path / "adapter")
    words = ["merge", str(tmp_path / "adapter"), "--out", str(tmp_path / "out"), "--gguf"]
    assert main(words) == 1
    assert "llama_cpp" in capsys.readouterr().err and not (tmp_path / "out").exists()
    assert main([*words, "--dtype", "fp8"]) == 2
