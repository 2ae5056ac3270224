"""The language of a text by its script and its most common words: enough to see what a file is made of."""

from __future__ import annotations

import re

SAMPLE = 300
SCRIPTS = (
    ("zh", re.compile("[\u4e00-\u9fff]")),
    ("ja", re.compile("[\u3040-\u30ff]")),
    ("ko", re.compile("[\uac00-\ud7af]")),
    ("ar", re.compile("[\u0600-\u06ff]")),
    ("he", re.compile("[\u0590-\u05ff]")),
    ("el", re.compile("[\u0370-\u03ff]")),
    ("hi", re.compile("[\u0900-\u097f]")),
    ("th", re.compile("[\u0e00-\u0e7f]")),
    ("ru", re.compile("[\u0400-\u04ff]")),
)
UKRAINIAN = re.compile("[іїєґ]")
WORDS = re.compile(r"[^\W\d_]+")
COMMON = {
    "en": "the and of to is in that it you for how what are this with can do i my not on be have if",
    "de": "der die das und ist nicht ich ein eine zu wie mit auf für von es sie den dem was",
    "fr": "le la les et est des une pour que je vous dans pas qui sur avec comment du ce au",
    "es": "el la los las y es que una por para con del cómo no se en lo un qué mi",
    "it": "il lo gli e è che una per con del della come non di si sono un nel mi",
    "pt": "o os as e é que uma para com do da como não se em um no na por meu",
    "tr": "bir ve bu için ile ne mi mı nasıl değil çok var daha olan ben gibi bana kadar",
    "nl": "de het een en is van niet ik dat op met voor zijn hoe wat er je te",
    "pl": "i w nie na się jest to z do jak co czy dla że mam o po",
}
COMMON_SETS = {language: frozenset(words.split()) for language, words in COMMON.items()}


def guess(lower: str) -> str | None:
    """The language of a lower-case text's beginning, or None where it does not show."""
    sample = lower[:SAMPLE]
    if not sample.isascii():
        scripts = {name: len(pattern.findall(sample)) for name, pattern in SCRIPTS}
        best = max(scripts, key=lambda name: scripts[name])
        if scripts[best] * 3 > len(sample.replace(" ", "")):
            if best == "zh" and scripts["ja"]:
                return "ja"
            return "uk" if best == "ru" and UKRAINIAN.search(sample) else best
    words = set(WORDS.findall(sample))
    scores = {language: len(words & common) for language, common in COMMON_SETS.items()}
    best, second = sorted(scores, key=lambda name: scores[name])[:-3:-1]
    return best if scores[best] > scores[second] else None
