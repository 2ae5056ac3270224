"""The user's settings: schema, errors with lines, one writer that keeps the user's text."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from engine import settings
from engine.errors import FtuiError, UsageError


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = settings.path()
    path.parent.mkdir()
    return path


def test_where_the_file_is(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert settings.path() == tmp_path / "ftui" / "settings.yaml"
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in ("", "not/absolute"):
        monkeypatch.setenv("XDG_CONFIG_HOME", value)
        assert settings.path() == tmp_path / ".config" / "ftui" / "settings.yaml"


def test_without_a_file_there_are_defaults_and_nothing_slow_is_loaded(tmp_path):
    code = "import sys; from engine import settings; s = settings.load(); print(s.refresh_hz, s.max_restarts, s.home)\n"
    code += "print([name for name in ('pydantic', 'yaml', 'orjson') if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"XDG_CONFIG_HOME": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.stdout.split("\n")[:2] == ["2.0 3 None", "[]"], done.stderr


def test_values(file):
    file.write_text("home: /data/ft\nrefresh_hz: 1\nprice: 2.19\nlanguage: no\nascii: yes\nprice_period: month\n")
    loaded = settings.load()
    assert (loaded.home, loaded.refresh_hz, loaded.price, loaded.language) == ("/data/ft", 1, 2.19, "no")
    assert (loaded.ascii, loaded.price_period, loaded.max_restarts) == (True, "month", 3)


@pytest.mark.parametrize("kind", ["pipe", "endless", "large"])
def test_what_is_no_file_of_settings_is_an_error_at_once(file, kind):
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "endless":
        file.symlink_to("/dev/zero")
    else:
        file.write_text("#" * (settings.MAX_BYTES + 1))
    with pytest.raises(UsageError, match="cannot be read") as raised:
        settings.load()
    assert raised.value.where == str(file)


@pytest.mark.parametrize("text", ["", "# nothing\n", "~\n"])
def test_an_empty_file_says_nothing(file, text):
    file.write_text(text)
    assert settings.load() == settings.Settings()


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        ("home: /x\nrefresh_hz: 9\n", 2, "refresh_hz"),
        ("refresh_hz: fast\n", 1, "refresh_hz"),
        ("\nprice: -1\n", 2, "price"),
        ("price_period: year\n", 1, "price_period"),
        ("price_currency: dollars\n", 1, "price_currency"),
        ("ascii: maybe\n", 1, "ascii"),
        ("max_restarts: 1.5\n", 1, "max_restarts"),
        ("home: [a]\n", 1, "home"),
        ("home: ''\n", 1, "home"),
        ("home: a\nhome: b\n", 2, "home"),
        ("a: 1\n\tb: 2\n", 2, "tab"),
        ("- a\n", 1, "mapping"),
        ("home: !!python/name:os.system x\n", 1, "tag"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(file, text, line, word):
    file.write_text(text)
    with pytest.raises(UsageError) as raised:
        settings.load()
    assert raised.value.where == f"{file}:{line}"
    assert word in raised.value.what
    assert raised.value.fix


def test_an_unknown_setting_names_the_nearest(file):
    file.write_text("hom: /x\n")
    with pytest.raises(UsageError) as raised:
        settings.load()
    assert "'home'" in (raised.value.fix or "")
    with pytest.raises(UsageError):
        settings.save(nothing_like_it=1)
    assert file.read_text() == "hom: /x\n"


def test_bytes_that_are_no_text(file):
    file.write_bytes(b"home: \xff\n")
    with pytest.raises(UsageError) as raised:
        settings.load()
    assert raised.value.where == f"{file}:1"


def test_saving_keeps_what_the_user_wrote(file):
    file.write_text("# mine\nprice: 1.5  # of the H100\n\ntheme:\nhome: '/a b'   # here\n# end")
    saved = settings.save(price=2.25, home="/c: #d", theme="dark", language="ru", ascii=True, python=None)
    assert file.read_text() == (
        "# mine\nprice: 2.25  # of the H100\n\ntheme: dark\nhome: '/c: #d'   # here\n# end\n"
        "language: ru\nascii: true\npython: null\n"
    )
    assert saved == settings.load()
    assert (saved.home, saved.theme) == ("/c: #d", "dark")
    assert settings.save(price=None).price is None


@pytest.mark.parametrize("value", ["no", "1", "~", "a\u2028b", "😀", "x: y # z", "'", "null"])
def test_any_text_comes_back_as_it_was(file, value):
    assert settings.save(theme=value).theme == value
    assert settings.save(theme=value, home="/x").theme == value


def test_a_wrong_value_is_not_written(file):
    file.write_text("price: 1\n")
    with pytest.raises(UsageError):
        settings.save(price=-1)
    file.write_text("nonsense: 1\n")
    with pytest.raises(UsageError):
        settings.save(price=1)
    assert file.read_text() == "nonsense: 1\n"


def test_two_writers_do_not_lose_each_other(file):
    names = ["home", "python", "vllm_python", "theme", "language"]
    threads = [threading.Thread(target=settings.save, kwargs={name: name}) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    loaded = settings.load()
    assert [getattr(loaded, name) for name in names] == names


def test_a_link_stays_a_link(file, tmp_path):
    real = tmp_path / "dotfiles.yaml"
    real.write_text("price: 1\n")
    file.symlink_to(real)
    settings.save(price=2)
    assert file.is_symlink()
    assert real.read_text() == "price: 2\n"


def test_a_place_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    assert settings.load() == settings.Settings()
    with pytest.raises(FtuiError) as raised:
        settings.save(price=1)
    assert raised.value.fix


def test_the_training_interpreter(file, monkeypatch):
    monkeypatch.delenv("FTUI_PYTHON", raising=False)
    assert settings.training_python() == sys.executable
    settings.save(python="/opt/torch/bin/python")
    assert settings.training_python() == "/opt/torch/bin/python"
    monkeypatch.setenv("FTUI_PYTHON", "/other/python")
    assert settings.training_python() == "/other/python"
