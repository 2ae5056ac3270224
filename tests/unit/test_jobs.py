"""Jobs for Slurm, SkyPilot and containers: what they say, and that their script starts, resumes and stops a run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from engine.errors import UsageError
from engine.interop import jobs
from tests.support.recipes import furnish
from tui.cli import main

CHECKOUT = Path(jobs.__file__).parents[2]


def _job(folder: Path, **changes: object) -> jobs.Job:
    recipe = {"model_name_or_path": "Qwen/Qwen3-8B", "dataset_path": str(folder / "rows.jsonl")}
    values = {"name": "mine-1", "recipe": recipe, "gpus": 8, "card": "NVIDIA H100 80GB HBM3", "hours": 30.0}
    return jobs.Job(**{**values, "home": str(folder / "home"), **changes})  # type: ignore[arg-type]


def test_slurm(tmp_path: Path) -> None:
    text = jobs.write(_job(tmp_path), "slurm", checkout=CHECKOUT)["job.sbatch"]
    options = dict(
        line.split("--", 1)[1].split("=", 1) for line in text.splitlines() if "SBATCH --" in line and "=" in line
    )
    assert options["gpus-per-node"] == "8" and options["job-name"] == "mine-1"
    assert options["time"] == "1-12:10:00"  # the plan's 30 hours, a fifth more, and the time to save
    assert options["signal"] == f"B:TERM@{jobs.STOP_S}"
    assert subprocess.run(["bash", "-n"], input=text, text=True).returncode == 0


def test_skypilot(tmp_path: Path) -> None:
    task = yaml.safe_load(jobs.write(_job(tmp_path), "skypilot", checkout=CHECKOUT)["task.yaml"])
    assert task["resources"]["accelerators"] == "H100:8"
    assert task["workdir"] == str(CHECKOUT)
    with pytest.raises(UsageError, match="not known"):
        jobs.write(_job(tmp_path, card="Graphics 9000"), "skypilot", checkout=CHECKOUT)


def test_container(tmp_path: Path) -> None:
    (service,) = yaml.safe_load(jobs.write(_job(tmp_path), "container", checkout=CHECKOUT)["compose.yaml"])[
        "services"
    ].values()
    assert service["deploy"]["resources"]["reservations"]["devices"][0]["count"] == 8
    assert f"{tmp_path}/rows.jsonl:{tmp_path}/rows.jsonl:ro" in service["volumes"]
    assert service["stop_grace_period"] == f"{jobs.STOP_S}s"


def test_several_machines_are_refused(tmp_path: Path) -> None:
    job = _job(tmp_path, recipe={"num_machines": 2})
    with pytest.raises(UsageError, match="several machines"):
        jobs.write(job, "slurm", checkout=CHECKOUT)


@pytest.mark.parametrize("name", ["it's", "a b; touch x", "$(touch x)"])
def test_a_name_is_never_a_command(tmp_path: Path, name: str) -> None:
    script = jobs.write(_job(tmp_path, name=name, gpus=0), "slurm", checkout=CHECKOUT)["run.sh"]
    assert _run(tmp_path, script).wait(timeout=20) == 0
    assert not (tmp_path / "x").exists()
    assert (tmp_path / "calls").read_text().splitlines() == [f"run recipe.yaml --name {name} --follow"]


def _run(folder: Path, script: str, code: int = 0, seconds: float = 0) -> subprocess.Popen[bytes]:
    """Run the script with an `ftui` that writes down how it is called."""
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    (programs / "ftui").write_text(
        f'#!/bin/sh\necho "$@" >> "{folder}/calls"\n[ "$1" = stop ] && {{ touch "{folder}/stopped"; exit 0; }}\n'
        f"i=0; while [ $i -lt {int(seconds * 10)} ]; do\n"
        f'[ -e "{folder}/stopped" ] && exit 75; sleep 0.1; i=$((i+1)); done\n'
        f"exit {code}\n"
    )
    (programs / "ftui").chmod(0o755)
    (folder / "run.sh").write_text(script)
    return subprocess.Popen(
        ["sh", str(folder / "run.sh")], env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    )


def test_the_script_resumes_what_is_there(tmp_path: Path) -> None:
    script = jobs.write(_job(tmp_path), "slurm", checkout=CHECKOUT)["run.sh"]
    state = tmp_path / "home/runs/mine-1/state.json"
    state.parent.mkdir(parents=True)
    state.write_text("{}")
    assert _run(tmp_path, script, code=3).wait(timeout=20) == 3
    assert (tmp_path / "calls").read_text() == "resume mine-1 --follow\n"


def test_a_signal_stops_the_run_with_everything_saved(tmp_path: Path) -> None:
    script = jobs.write(_job(tmp_path), "slurm", checkout=CHECKOUT)["run.sh"]
    process = _run(tmp_path, script, seconds=20)
    deadline = time.monotonic() + 10
    while not (tmp_path / "calls").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == 75
    assert "stop mine-1" in (tmp_path / "calls").read_text()


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    furnish(tmp_path)
    (tmp_path / "r.yaml").write_text("model_name_or_path: ./model\ndataset_path: ./train.jsonl\nnum_gpus: 2\n")
    monkeypatch.chdir(tmp_path)
    words = ["export", "r.yaml", "learning_rate=1e-5", "--to", "slurm", "--json"]
    assert main(words) == 0
    document = json.loads(capsys.readouterr().out)
    recipe = yaml.safe_load(Path(document["path"], "recipe.yaml").read_text())
    assert recipe["learning_rate"] == 1e-5 and recipe["dataset_path"] == str(tmp_path / "train.jsonl")
    assert os.access(Path(document["path"], "run.sh"), os.X_OK)
    assert main(words) == 2  # nothing is overwritten
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "exists"


def test_a_line_end_in_a_path_ends_no_comment(tmp_path: Path) -> None:
    job = _job(tmp_path, home=f"{tmp_path}/a\ntouch x\n", recipe={"dataset_path": "/d/a\ngates: [x]"})
    files = jobs.write(job, "slurm", checkout=CHECKOUT)
    assert "touch x" not in [line.strip() for line in files["job.sbatch"].splitlines()]
    task = jobs.write(job, "skypilot", checkout=CHECKOUT)["task.yaml"]
    assert "file_mounts" in yaml.safe_load(task) and "touch x" not in [line.strip() for line in task.splitlines()]
    assert yaml.safe_load(files["recipe.yaml"]) == {"dataset_path": "/d/a\ngates: [x]"}


def test_the_file_of_a_recipe_becomes_a_name_that_a_run_can_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "-r $(x).yaml").write_text("model_name_or_path: builtin:tiny\ndataset_path: builtin:support\n")
    monkeypatch.chdir(tmp_path)
    assert main(["export", "./-r $(x).yaml", "--to", "slurm", "--out", "$(x)"]) == 0
    assert "cd '$(x)' &&" in capsys.readouterr().err
    assert "NAME=r-x\n" in (tmp_path / "$(x)/run.sh").read_text()


def test_a_run_with_a_damaged_resolved_recipe_is_refused(house: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = house / "ft/runs/a"
    run.mkdir(parents=True)
    (run / "resolved.json").write_text("{}")
    assert main(["export", "a", "--to", "slurm", "--dry-run"]) == 2
    assert "resolved.json is missing or damaged" in capsys.readouterr().err


def test_a_disk_that_is_full_leaves_nothing_half_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine import files

    (tmp_path / "r.yaml").write_text("model_name_or_path: builtin:tiny\ndataset_path: builtin:support\n")

    def full(path: Path, *_args: object, **_more: object) -> None:
        path.write_text("a part")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write_atomic", full)
    assert main(["export", str(tmp_path / "r.yaml"), "--to", "slurm", "--out", str(tmp_path / "job")]) == 1
    assert "the job cannot be written: No space left" in capsys.readouterr().err
    assert not (tmp_path / "job").exists()
