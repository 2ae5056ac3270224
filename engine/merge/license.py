"""The license of the base: a tuned model keeps it, and some of them say what it must be called and what it must show.

Read from the model card, else the license's text beside the weights, else what was noted when the model was fetched,
else the model's name. What is said here are the duties of whoever passes the merged model on, shortened; the license's
text counts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.files import read_json
from engine.merge.base import Base
from engine.merge.report import Report
from engine.text import _

_FRONT = 64 * 1024
_TEXT = 8 * 1024
_FILES = re.compile(r"(?:.*[-_.])?(?:licen[cs]e|use_policy|notice)(?:[-_.].*)?\Z", re.IGNORECASE)


@dataclass(frozen=True)
class Terms:
    """A license as a program can act on it.

    Attributes:
        family: "llama", "gemma", "qwen", "mistral", "apache", "mit", "other" or "unknown".
        id: as the card calls it (`llama3.1`, `apache-2.0`, …).
        found: where that was read: "card", "file", "hub", "name" or "".
        front: the card's own lines about it, which the merged model's card repeats.
        prefix: what the model's name must begin with.
        shows: what must be shown prominently.
        duties: what else whoever passes it on must do.
        notice: the text of the file NOTICE that must come along.
    """

    family: str
    id: str
    found: str
    front: dict[str, str] = field(default_factory=dict)
    prefix: str | None = None
    shows: str | None = None
    duties: tuple[str, ...] = ()
    notice: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The terms as a JSON object."""
        return {**vars(self), "duties": list(self.duties)}


def of(base: Base, names: Sequence[str], home: Path | None) -> Terms:
    """The license of a base.

    Args:
        base: the model.
        names: what it is called, best first.
        home: the workspace, whose records of fetched models may know the license.
    """
    front = _card(base.folder)
    told = " ".join(front.get(key, "") for key in ("license_name", "license", "license_link"))
    for text, found in (
        (told if front.get("license") != "other" or front.get("license_name") else "", "card"),
        (_texts(base.folder), "file"),
        (_fetched(names, home), "hub"),
        (" ".join([*names, base.folder.name]), "name"),
    ):
        family, version = _recognized(text, by_name=found == "name")
        if family != "unknown":
            label = front.get("license_name") or front.get("license") or _label(family, version, text)
            return _terms(family, version, label, found, front)
        if found == "card" and text.strip():
            return _terms("other", "", front.get("license_name") or front.get("license", ""), "card", front)
    return _terms("unknown", "", front.get("license", ""), "", front)


def check(terms: Terms, name: str, report: Report) -> None:
    """Report a name that the license forbids.

    Args:
        terms: the base's license.
        name: of the merged model: that of its folder.
        report: takes the finding.
    """
    if terms.prefix is not None and not _begins(name, terms.prefix):
        detail = _('{license}: the name of a model that is passed on must begin with "{prefix}", and this is {name}')
        fix = _("call it {prefix}-{name}, or keep it to yourselves").format(
            prefix=terms.prefix.replace(" ", "-"), name=name
        )
        report.add("license_name", "warning", detail.format(license=terms.id, prefix=terms.prefix, name=name), fix=fix)


def _begins(name: str, prefix: str) -> bool:
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    return plain.startswith(re.sub(r"[^a-z0-9]", "", prefix.lower()))


def _card(folder: Path) -> dict[str, str]:
    """What the head of a model card says of the license."""
    import yaml

    try:
        with open(folder / "README.md", encoding="utf-8", errors="replace") as file:
            text = file.read(_FRONT)
        front = yaml.safe_load(text[3:].partition("\n---")[0]) if text.startswith("---") else None
    except (OSError, yaml.YAMLError, RecursionError, ValueError):
        return {}
    if not isinstance(front, dict):
        return {}
    found = {}
    for key in ("license", "license_name", "license_link"):
        value = front.get(key)
        value = value[0] if isinstance(value, list) and value else value
        if isinstance(value, str):
            found[key] = value
    return found


def _texts(folder: Path) -> str:
    """The beginning of the license files."""
    texts = []
    try:
        for path in sorted(folder.iterdir()):
            if _FILES.match(path.name) and path.is_file():
                with open(path, encoding="utf-8", errors="replace") as file:
                    texts.append(file.read(_TEXT))
    except OSError:
        pass
    return "\n".join(texts)


def _fetched(names: Sequence[str], home: Path | None) -> str:
    """What the record of a fetched model says."""
    if home is None:
        return ""
    for name in names:
        if re.fullmatch(r"[\w.-]+/[\w.-]+", name):
            record = read_json(home / "models" / f"{name.replace('/', '--')}.json")
            if isinstance(record, dict) and isinstance(record.get("license"), str):
                return str(record["license"])
    return ""


def _recognized(text: str, *, by_name: bool) -> tuple[str, str]:
    """(family, version) of the license that a text names or is."""
    low = re.sub(r"\s+", " ", text.lower())
    if not low.strip():
        return "unknown", ""
    if by_name:  # Qwen's and Mistral's are many, and Gemma's has changed: their names do not tell
        found = re.search(r"(?:meta-)?llama[-_ ]?(\d(?:\.\d)?)", low)
        return ("llama", found[1]) if found else ("unknown", "")
    if found := re.search(r"llama[-_ ]?(\d(?:\.\d)?)", low):
        return "llama", found[1]
    if re.search(r"gemma", low):
        return "gemma", ""
    if re.search(r"qwen", low) and not low.startswith(("apache", " apache")):
        return "qwen", "research" if "research" in low else ""
    if re.search(r"\bmrl\b|\bmnpl\b|mistral(?:[ -]ai)? (?:ai )?(?:research|non-production)|mistral-ai-research", low):
        return "mistral", ""
    if re.search(r"apache[- ](?:license|2)|apache-2\.0", low):
        return "apache", "2.0"
    if re.search(r"\bmit\b", low) and (len(low) < 200 or "permission is hereby granted" in low):
        return "mit", ""
    return "unknown", ""


def _label(family: str, version: str, text: str) -> str:
    short = text.strip()
    if short and len(short) < 40 and "\n" not in short and "/" not in short:
        return short
    return {"llama": f"llama{version}", "apache": "apache-2.0"}.get(family, family)


def _terms(family: str, version: str, label: str, found: str, front: dict[str, str]) -> Terms:
    prefix = shows = notice = None
    duties: list[str] = []
    if family == "llama":
        duties = [
            _("pass a copy of the license on"),
            _("keep to its acceptable use policy"),
            _("a service with more than 700 million users a month needs Meta's own permission"),
        ]
        if version.startswith("2"):
            duties.append(_("do not use it or its answers to improve other language models"))
        else:
            prefix = "Llama 3" if version in ("3", "3.0") else "Llama"
            shows = "Built with Meta Llama 3" if version in ("3", "3.0") else "Built with Llama"
        notice = _notice(version)
    elif family == "gemma":
        duties = [
            _("pass on a copy of the Gemma terms and their restrictions of use, which bind whoever gets it too"),
            _("say that the model was changed"),
        ]
        notice = "Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms"
    elif family == "qwen":
        shows = "Built with Qwen"
        duties = [_("pass a copy of the license on"), _("say that the model was changed")]
        duties.append(
            _("research and other uses without commerce only")
            if version == "research"
            else _("a service with more than 100 million users a month needs Alibaba Cloud's own permission")
        )
    elif family == "mistral":
        duties = [
            _("research and other uses without commerce only"),
            _("pass a copy of the license on, which the merged model keeps"),
            _("say that the model was changed"),
        ]
    elif family == "apache":
        duties = [_("pass the license and the base's NOTICE on"), _("say that the model was changed")]
    elif family == "mit":
        duties = [_("pass the license and its copyright line on")]
    elif family == "other":
        duties = [_("read the base's own license before you pass the model on")]
    return Terms(family, label or _("unknown"), found, front, prefix, shows, tuple(duties), notice)


def _notice(version: str) -> str:
    name = f"Meta Llama {version[0]}" if version in ("3", "3.0") else f"Llama {version}"
    return (
        f"{name} is licensed under the {name} Community License, Copyright © Meta Platforms, Inc. All Rights Reserved."
    )
