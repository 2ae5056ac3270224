"""What the light side loads: never a training library, and slow modules only where they are needed."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ["torch", "transformers", "trl", "peft", "accelerate", "datasets", "bitsandbytes", "deepspeed", "tensorflow"]
SLOW = ["textual", "pydantic", "yaml", "babel", "psutil", "numpy", "httpx", "rich", "huggingface_hub", "asyncio"]
SHOW = "import json, sys; print(json.dumps(sorted(sys.modules)))"


def loaded(code: str) -> set[str]:
    done = subprocess.run([sys.executable, "-P", "-c", f"{code}\n{SHOW}"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {name.strip('"[], ').split(".")[0] for name in done.stdout.splitlines()[-1].split(",")}


@pytest.mark.parametrize(
    "code",
    [
        "import tui.app",
        "import tui.app, tui.palette, tui.screens.home, tui.screens.run, tui.sources.run_listing",
        "import tui.modals.new_run, tui.modals.help, tui.modals.detail, tui.modals.confirm",
        "import tui.screens.planner, tui.modals.ask, tui.commands.plan, tui.plan_text, engine.plan.draft",
        "import engine.recipe, engine.settings, engine.run.status, engine.run.launch, engine.run.control",
        "import engine.keeper, engine.checkpoint, engine.hardware, engine.process",
        "import engine.merge.run, engine.merge.source, tui.commands.merge",
    ],
)
def test_the_light_side_loads_no_training_library(code: str) -> None:
    assert not loaded(code) & set(HEAVY)


def test_help_loads_nothing_slow() -> None:
    code = "import sys\nfrom tui.cli import main\ntry:\n    main(['--help'])\nexcept SystemExit:\n    pass"
    assert not loaded(code) & {*HEAVY, *SLOW}


def test_the_app_makes_its_other_screens_later() -> None:
    names = subprocess.run(
        [sys.executable, "-P", "-c", f"import tui.app, tui.screens.home\n{SHOW}"], capture_output=True, text=True
    ).stdout
    for late in (
        "tui.screens.run",
        "tui.screens.planner",
        "engine.plan",
        "tui.modals.new_run",
        "tui.palette",
        "babel.numbers",
        "psutil",
        "numpy",
    ):
        assert f'"{late}"' not in names, late
