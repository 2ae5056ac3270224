"""A merged folder as one GGUF file, by llama.cpp's own converter where that is installed."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from engine.errors import FtuiError
from engine.files import fsync_dir
from engine.text import _

SCRIPT = "convert_hf_to_gguf.py"
TYPES = ("auto", "f32", "f16", "bf16", "q8_0")  # what the converter itself writes; smaller ones take llama-quantize
_LAST = 8


def command() -> list[str]:
    """How the converter is called: the script of the setting `llama_cpp`, or the one on PATH.

    Raises:
        FtuiError: it is not there.
    """
    from engine import settings

    folder = settings.load().llama_cpp
    if folder is not None:
        script = Path(os.path.expanduser(folder)) / SCRIPT  # noqa: PTH111 - Path's dies of a user without a passwd entry
        if script.is_file():
            own = next(
                (p for p in (script.parent / ".venv/bin/python", script.parent / "venv/bin/python") if p.exists()), None
            )
            return [str(own or settings.training_python()), str(script)]
        raise _missing(_("there is no {script} in {folder}").format(script=SCRIPT, folder=folder), "llama_cpp")
    for name in (SCRIPT, "convert-hf-to-gguf"):
        if found := shutil.which(name):
            return [found]
    raise _missing(_("llama.cpp's converter is not installed ({script})").format(script=SCRIPT), "--gguf")


def _missing(detail: str, where: str) -> FtuiError:
    fix = _("get llama.cpp and name its folder in the settings (`llama_cpp: …`), or leave --gguf out")
    return FtuiError(detail, where=where, fix=fix, kind="no_converter")


def convert(argv: list[str], folder: Path, kind: str = "auto", say: Callable[[str], None] = lambda text: None) -> Path:
    """Write FOLDER/NAME.gguf; under another name until it is whole.

    Args:
        argv: as `command` says.
        folder: a merged model in 16 or 32 bits.
        kind: one of `TYPES`.
        say: takes what the converter says.

    Raises:
        FtuiError: the converter failed; the merged folder stays as it is.
    """
    target = folder / f"{folder.name}.gguf"
    part = folder / f".{folder.name}.gguf.part"
    lines: list[str] = []
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    try:
        with subprocess.Popen(
            [*argv, str(folder), "--outfile", str(part), "--outtype", kind],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, text=True,
            errors="replace",
        ) as process:  # fmt: skip
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    lines = [*lines[1 - _LAST :], line.strip()[:200]] if line.strip() else lines
                    say(lines[-1] if lines else "")
            except BaseException:
                process.kill()
                raise
        if process.returncode or not part.is_file():
            telling = next((line for line in reversed(lines) if "rror" in line), lines[-1] if lines else "")
            raise FtuiError(
                _("llama.cpp's converter failed: {reason}").format(reason=telling or process.returncode),
                where=" ".join(argv),
                fix=_("the merged folder is whole; run the converter by hand to see more"),
                kind="gguf_failed",
            )
        part.rename(target)
        fsync_dir(folder)
    except OSError as error:
        raise FtuiError(
            _("llama.cpp's converter cannot be started: {reason}").format(reason=error.strerror or error),
            where=" ".join(argv),
            fix=_("check the setting `llama_cpp`; the merged folder is whole"),
            kind="gguf_failed",
        ) from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
    return target
