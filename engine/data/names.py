"""Names of people, found by a language model where a package for it is installed: spaCy (with a pipeline), natasha.

Slow beside everything else here, so it is asked for (`--names`). Without a package only the rules of `privacy` look.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import re
from collections.abc import Callable
from typing import Any

from engine.errors import UsageError
from engine.text import _

Finder = Callable[[str], list[tuple[int, int]]]
PERSON = frozenset(("PERSON", "PER"))
CYRILLIC = re.compile("[а-яё]")
LIMIT = 100_000  # characters of a row that are looked at


def package() -> str | None:
    """What finds names here: "spacy", "natasha", both, or None."""
    found = [name for name, usable in (("spacy", _pipelines), ("natasha", _has_natasha)) if usable()]
    return " + ".join(found) or None


def needed() -> str:
    """The package that finds names.

    Raises:
        UsageError: none is installed.
    """
    name = package()
    if name is None:
        raise UsageError(
            _("no package that finds names of people is installed"),
            where="--names",
            fix=_("pip install spacy and one of its pipelines (xx_ent_wiki_sm), or natasha for Russian"),
            kind="missing_package",
        )
    return name


def find(text: str) -> list[tuple[int, int]]:
    """Where names of people stand in a text."""
    text = text[:LIMIT]
    if CYRILLIC.search(text) and _has_natasha():
        return _natasha()(text)
    return _spacy()(text) if _pipelines() else []


@functools.cache
def _pipelines() -> tuple[str, ...]:
    if importlib.util.find_spec("spacy") is None:
        return ()
    installed = importlib.import_module("spacy.util").get_installed_models()
    # One for many languages first, then English: the data may be in any.
    return tuple(sorted(installed, key=lambda name: (not name.startswith("xx_"), not name.startswith("en_"), name)))


@functools.cache
def _has_natasha() -> bool:
    return importlib.util.find_spec("natasha") is not None


@functools.cache
def _spacy() -> Finder:
    pipeline = importlib.import_module("spacy").load(_pipelines()[0])
    return lambda text: [(e.start_char, e.end_char) for e in pipeline(text).ents if e.label_ in PERSON]


@functools.cache
def _natasha() -> Finder:
    natasha: Any = importlib.import_module("natasha")
    segmenter = natasha.Segmenter()
    tagger = natasha.NewsNERTagger(natasha.NewsEmbedding())

    def find_in(text: str) -> list[tuple[int, int]]:
        document = natasha.Doc(text)
        document.segment(segmenter)
        document.tag_ner(tagger)
        return [(span.start, span.stop) for span in document.spans if span.type in PERSON]

    return find_in
