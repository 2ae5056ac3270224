"""Phone numbers: by their country code, by the way a country writes them, or by the word before them."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

Found = tuple[str, int, int]
WINDOW = 40
INTERNATIONAL = re.compile(r"(?<![\w+])(?:\+|00(?=[1-9]))(?:[ \u00a0().\-/\u2010-\u2013]{0,3}\d){8,15}(?!\d)")
# Ways of writing that say of themselves that they are phone numbers, with the country that writes so.
WRITTEN = (
    ("US", re.compile(r"(?<![\w.\-/(+])(?:1[ .-])?(?:\([2-9]\d{2}\) ?|[2-9]\d{2}[.-])[2-9]\d{2}[ .-]\d{4}(?![\w-]|\.\d)")),
    ("RU", re.compile(r"(?<![\w.\-/(+=#])89\d{9}(?![\w-]|\.\d)")),
    ("TR", re.compile(r"(?<![\w.\-/(+])0[ -]?(?:\([234]\d{2}\) ?|[234]\d{2}[ -])\d{3}[ -]\d{2}[ -]\d{2}(?![\w-]|\.\d)")),
    ("RU", re.compile(r"(?<![\w.\-/(+])8[ -]?(?:\([3489]\d{2}\)[ -]?|[3489]\d{2}[ -])\d{3}[ -]?\d{2}[ -]?\d{2}(?![\w-]|\.\d)")),
    ("TR", re.compile(r"(?<![\w.\-/(+])0[ -]?(?:\(5\d{2}\)[ -]?|5\d{2}[ -]?)\d{3}[ -]?\d{2}[ -]?\d{2}(?![\w-]|\.\d)")),
)  # fmt: skip
WORDS = re.compile(
    r"(?i)(?:\bphones?\b|\btel\b|\btelephone|\bmobile\b|\bcell\b|\bcall\b|\bfax\b|\bwhatsapp|\bviber\b|\bsms\b|\btext me\b|"
    r"\bcontact number|\breach (?:me|us) (?:at|on)|\bmy number|телефон|\bтел\b|звон|моб\.|мобильн|сотов|ватсап|вотсап|"
    r"номер для связи|telefon|\bara\b|arayın|\bcep\b|numaram|\bgsm\b|handy|\brufnummer|portable|téléphone|móvil|teléfono|"
    r"celular|telefone|电话|手机|電話)"
)
AFTER_WORD = re.compile(r"(?<![\w+\-/.])\(?\d(?:[ \u00a0().\-/]{0,2}\d){6,13}(?![\w-]|\.\d)")
REGIONS = ("US", "GB", "DE", "FR", "ES", "IT", "NL", "PL", "TR", "RU", "IN", "BR", "MX", "CN", "JP", "KR", "AU")
CYRILLIC = re.compile("[а-яё]")
TURKISH = re.compile("[ğşıİ]|\\bara\\b|telefon|numara")


def find(text: str) -> Iterator[Found]:
    """Each phone number as (phone_<country>, start, end); the same place may come twice."""
    found: set[int] = set()  # where the digits of a number end: what a word announces is mostly found before
    for match in INTERNATIONAL.finditer(text):
        if region := _international(match.group()):
            found.add(match.end())
            yield f"phone_{region}", *match.span()
    for region, pattern in WRITTEN:
        for match in pattern.finditer(text):
            found.add(match.end())
            yield f"phone_{region.lower()}", *match.span()
    if WORDS.search(text):
        regions = _likely(text)
        for match in AFTER_WORD.finditer(text):
            named = WORDS.search(text, max(0, match.start() - WINDOW), match.start())
            if named and match.end() not in found and (region := _national(match.group(), regions)):
                yield f"phone_{region}", *match.span()


@functools.lru_cache(maxsize=4096)
def _international(number: str) -> str | None:
    """The country of a number with its country code, "int" for a code of several countries; None for no number."""
    import phonenumbers

    digits = "+" + re.sub(r"\D", "", number.removeprefix("00") if number.startswith("00") else number)
    try:
        parsed = phonenumbers.parse(digits, None)
    except phonenumbers.NumberParseException:
        return None
    # Behind a plus sign, the right length is enough: numbers made up for examples are often not assigned.
    known = phonenumbers.is_valid_number(parsed)
    if not known and (not number.startswith("+") or not phonenumbers.is_possible_number(parsed)):
        return None
    region = phonenumbers.region_code_for_number(parsed)
    region = region or phonenumbers.region_code_for_country_code(parsed.country_code or 0)
    return "int" if region in (None, "001", "ZZ") else str(region).lower()


def _likely(text: str) -> tuple[str, ...]:
    """Countries in the order in which a text's numbers are tried."""
    first = ("RU", "KZ", "UA") if CYRILLIC.search(text) else ("TR",) if TURKISH.search(text) else ()
    return (*first, *REGIONS)


@functools.lru_cache(maxsize=4096)
def _national(number: str, regions: tuple[str, ...]) -> str | None:
    """The first of some countries in which these digits are a number."""
    import phonenumbers

    for region in regions:
        try:
            parsed = phonenumbers.parse(number, region)
        except phonenumbers.NumberParseException:
            return None
        if phonenumbers.is_valid_number_for_region(parsed, region):
            return str(region.lower())
    return None
