"""What the documents tell a newcomer to type is right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from engine import recipe
from tui import cli

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMAND = re.compile(r"ftui (?:run|recipe check|plan) [^`\n]*")
PAIR = re.compile(r"(?<=\s)([a-z]\w*=[^\s`)]+)")
PLACES = ("model_name_or_path", "dataset_path")  # of the reader's own


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_values_on_command_lines_are_right(page: Path) -> None:
    for command in COMMAND.findall(page.read_text(encoding="utf-8")):
        pairs = [pair for pair in PAIR.findall(command) if not pair.startswith((*PLACES, "key="))]
        found = recipe.load(recipe.find("lora-sft"), pairs).findings
        assert [f.detail for f in found if f.level == "error"] == [], command


def test_some_command_lines_were_found() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert len(COMMAND.findall(text)) > 5 and "learning_rate=1e-4" in PAIR.findall(text)


def test_exit_codes_of_every_command_are_documented() -> None:
    text = (ROOT / "docs" / "exit-codes.md").read_text(encoding="utf-8")
    assert [name for name in cli.COMMANDS if f"`{name}" not in text] == []
