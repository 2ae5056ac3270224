"""The command line's frame: finding commands, errors, JSON, streams."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine.errors import FtuiError
from tui import cli
from tui.output import Output, width


def ftui(*argv: str, **kwargs) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "tui", *argv], capture_output=True, text=True, timeout=60, **kwargs)


def test_help_lists_every_command_and_loads_none(capsys):
    with pytest.raises(SystemExit) as exit_:
        cli.main(["--help"])
    assert exit_.value.code == 0
    shown = capsys.readouterr().out
    assert all(f"\n  {name} " in shown for name in cli.COMMANDS)
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, tui.cli; print([m for m in sys.modules if m.startswith('tui.commands.')])"],
        capture_output=True,
        text=True,
    )
    assert loaded.stdout.strip() == "[]"


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_each_command_explains_itself(name, capsys):
    with pytest.raises(SystemExit) as exit_:
        cli.main([name, "--help"])
    assert exit_.value.code == 0
    assert f"ftui {name}" in capsys.readouterr().out


def test_unknown_command_names_the_nearest(capsys):
    assert cli.main(["rnus"]) == 2
    assert "ftui runs" in capsys.readouterr().err


def test_json_error_is_one_document_on_stdout():
    done = ftui("status", "nothing", "--json")
    assert done.returncode == 2
    document = json.loads(done.stdout)
    assert document["error"]["kind"] == "no_such_run"
    assert document["error"]["fix"]


@pytest.mark.parametrize("argv", [["--json", "runs"], ["runs", "--json"]])
def test_json_flag_before_or_after_the_command(argv):
    done = ftui(*argv)
    assert (done.returncode, json.loads(done.stdout)) == (0, [])


def test_home_flag_before_or_after_the_command(tmp_path):
    first = ftui("--home", str(tmp_path / "a"), "runs")
    second = ftui("runs", "--home", str(tmp_path / "a"))
    assert first.returncode == second.returncode == 0
    assert str(tmp_path / "a") in first.stdout and first.stdout == second.stdout


def test_bad_flag_is_a_usage_error_without_a_traceback():
    done = ftui("runs", "--nonsense")
    assert done.returncode == 2
    assert "--nonsense" in done.stderr and "Traceback" not in done.stderr


def test_app_without_a_terminal_says_what_to_use_instead():
    done = ftui(stdin=subprocess.DEVNULL)
    assert done.returncode == 2
    assert "ftui watch" in done.stderr


def test_unexpected_error_goes_to_the_log_not_the_screen(tmp_path, monkeypatch, capsys):
    from tui.commands import runs

    def broken(args, out):
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(runs, "run", broken)
    assert cli.main(["runs", "--home", str(tmp_path)]) == 1
    err = capsys.readouterr().err
    log = tmp_path / "logs" / "ftui.log"
    assert "Traceback" not in err and str(log) in err
    assert "Traceback" in log.read_text()


def test_reader_that_goes_away_is_quiet(tmp_path):
    run = tmp_path / "run"
    (run / "logs").mkdir(parents=True)
    (run / "resolved.json").write_text("{}")
    (run / "logs" / "rank-0.log").write_text("line\n" * 200_000)
    done = subprocess.run(
        ["bash", "-c", 'set -o pipefail; "$0" -m tui logs "$1" -n 200000 | head -1', sys.executable, str(run)],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "line\n", "")


def test_results_stay_on_stdout_in_a_pipe_and_remarks_leave_it(capsys):
    out = Output()
    out.line("result")
    out.note("remark")
    got = capsys.readouterr()
    assert (got.out, got.err) == ("result\n", "remark\n")
    out.as_json = True
    out.line("result")
    assert capsys.readouterr().out == ""


def test_error_shows_what_where_and_fix(capsys):
    Output().error(FtuiError("disk full", where="/data", fix="free 3 GB"))
    assert capsys.readouterr().err == "error: disk full\n  at   /data\n  fix  free 3 GB\n"


def test_table_columns_line_up_with_wide_text(capsys):
    Output().table(["name", "n"], [["日本", "1"], ["ab", "22"]], right=frozenset({1}))
    assert capsys.readouterr().out == "name   n\n日本   1\nab    22\n"


def test_width_counts_cells():
    assert (width("abc"), width("Москва"), width("日本"), width("e\u0301")) == (3, 6, 4, 1)


def test_options_may_stand_between_the_words(tmp_path):
    done = ftui("run", "nowhere.yaml", "--name", "x", "max_steps=5", "--dry-run", cwd=tmp_path)
    assert done.returncode == 2
    assert "nowhere.yaml" in done.stderr and "unrecognized" not in done.stderr


def test_a_users_own_engine_folder_on_the_path_does_not_shadow_ours(tmp_path):
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "__init__.py").write_text("raise SystemExit('the wrong engine')")
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from tui.__main__ import main; sys.argv = ['ftui', 'runs']; sys.exit(main())",
        ],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd="/",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "words",
    ["demo --steps 0", "demo --steps -1", "resume a --gpus -1", "resume a --step x", "logs a -n -1", "runs -n 1.5"],
)
def test_numbers_that_make_no_sense_are_refused(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words.split()) == 2
    assert "not a whole number" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv", [["nosuch"], ["status"], ["keeper"], ["recipe"], ["recipe", "check"], ["run"], ["run", "x", "--nosuch"]]
)
def test_wrong_usage_is_told_in_json_too(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for line in ([*argv, "--json"], ["--json", *argv]):
        assert cli.main(line) == 2
        error = json.loads(capsys.readouterr().out)["error"]
        assert error["kind"] == "usage" and error["fix"]
        assert "key=value" not in error["message"], "what may be left out is not required"


@pytest.mark.parametrize("name", ["logs", "watch", "run", "resume"])
def test_help_says_where_json_is_a_stream(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main([name, "--help"])
    assert "one JSON object a line" in " ".join(capsys.readouterr().out.split())


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Output], None]], list[str]]:
    """The lines that something prints on a terminal of 60 columns."""
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("NO_COLOR", "1")

    def lines(show: Callable[[Output], None]) -> list[str]:
        with contextlib.redirect_stdout(Terminal()) as screen:
            show(Output())
        return screen.getvalue().splitlines()

    return lines


def test_the_kept_column_outlives_the_others_and_ends_with_an_ellipsis_where_it_is_cut(narrow) -> None:
    headers = ["run", "state", "step", "loss", "eval", "error"]
    row = ["a-name-of-20-letters", "failed", "100/1000", "1.234", "1.345"]
    table = [[*row, "the disk that holds the checkpoints is full"]]
    head, line = narrow(lambda out: out.table(headers, table, kept=5))
    assert head.split() == ["run", "state", "error"]
    assert line == "a-name-of-20-letters  failed  the disk that holds the check…" and len(line) == 60
    head, line = narrow(lambda out: out.table(headers, [[*row, ""]], kept=5))
    assert "error" not in head and "1.345" in line


def test_a_labeled_line_is_broken_at_words_and_goes_on_below_itself(narrow) -> None:
    lines = narrow(lambda out: out.field("error", "word " * 20 + "a-very-long-path/" * 5))
    assert lines[0].startswith("error      word") and len(lines) > 2
    assert all(line.startswith(" " * 11) for line in lines[1:])
    assert all(len(line) <= 60 for line in lines[:-1]) and lines[-1].endswith("a-very-long-path/" * 5)


def test_a_log_that_cannot_be_written_shows_no_traceback_of_its_own(tmp_path, monkeypatch, capfd):
    from tui import crashlog

    monkeypatch.setattr(crashlog, "log_file", lambda home: Path("/dev/full"))
    monkeypatch.setattr(crashlog, "tempfile", SimpleNamespace(gettempdir=lambda: str(tmp_path)))
    assert crashlog.record(ValueError("x"), None).where == str(tmp_path / "ftui.log")  # the next place
    monkeypatch.setattr(crashlog, "tempfile", SimpleNamespace(gettempdir=lambda: str(tmp_path / "nowhere")))
    told = crashlog.record(OSError(28, "No space left on device"), None)
    assert (told.where, told.what) == (None, "No space left on device") and "log" not in str(told.fix)
    assert "Traceback" not in "".join(capfd.readouterr())
