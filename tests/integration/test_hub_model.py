"""A model of the hub that cannot be had: said at once by the ranks, and as what it is."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from engine.errors import UsageError
from engine.files import write_json
from engine.train import job
from engine.train.rank import Rank
from engine.workspace import RunFolder

pytestmark = pytest.mark.heavy


class Alone:
    """Ranks of a run with one."""

    @staticmethod
    def by_first(work: Any) -> Any:
        return work()


@pytest.mark.parametrize("offline", ["1", "0"])
def test_a_model_that_cannot_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offline: str) -> None:
    import huggingface_hub

    from engine.train import source

    def unreachable(*_args: Any, **_more: Any) -> None:
        raise ConnectionError("name or service not known")

    monkeypatch.setenv("HF_HUB_OFFLINE", offline)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", unreachable)
    run = RunFolder(tmp_path / "runs" / "one")
    run.path.mkdir(parents=True)
    write_json(run.resolved, {"format": 1, "recipe": {"model_name_or_path": "Qwen/Nope"}})
    work = job.load(Rank(run, 0, 0, 1, 1, None))
    assert source.to_come(work) == "download"
    begin = time.monotonic()
    with pytest.raises(UsageError) as caught:
        source.locate(work, Alone())  # type: ignore[arg-type]
    assert time.monotonic() - begin < 5
    error = caught.value
    assert (error.kind, error.where) == ("no_model", "model_name_or_path")
    assert "ftui model get Qwen/Nope" in str(error.fix) and "tokenizer" not in error.what
    assert ("HF_HUB_OFFLINE" if offline == "1" else "not known") in error.what
    folder = tmp_path / "home" / ".cache" / "huggingface" / "hub" / "models--Qwen--Nope" / "snapshots" / "abc"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert source.to_come(work) is None and source.locate(work, Alone()) == "Qwen/Nope"  # type: ignore[arg-type]
