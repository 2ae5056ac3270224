"""A resume where the base model is not: said before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import UsageError
from engine.files import write_json
from engine.run import resuming
from engine.workspace import RunFolder


def test_the_base_model_must_be_here(tmp_path: Path) -> None:
    run, base = RunFolder(tmp_path / "one"), tmp_path / "base"
    run.path.mkdir()
    for name in (None, "builtin:tiny", "Qwen/Qwen3-8B"):
        write_json(run.resolved, {"recipe": {"model_name_or_path": name}})
        resuming.need_base(run)
    write_json(run.resolved, {"recipe": {"model_name_or_path": str(base)}})
    with pytest.raises(UsageError, match="the base model of one is not here") as caught:
        resuming.need_base(run)
    assert caught.value.where == str(base) and caught.value.exit_code == 2
    (tmp_path / "elsewhere").mkdir()
    base.symlink_to(tmp_path / "elsewhere")
    resuming.need_base(run)
