"""Numbers that stand for a person or an account: cards, bank accounts, national ids. Each by its checksum.

A checksum of one digit lets one number in ten through, so a weak one counts only after a word that says what follows.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Iterator
from typing import NamedTuple

Found = tuple[str, int, int]
EDGE = r"(?<![\w.+/=#-])"
END = r"(?![\w=/]|[.-]\w)"
WINDOW = 48  # characters before a number in which its name may stand

IBAN = re.compile(
    r"(?<![A-Za-z0-9])(?:[A-Z]{2}\d{2}(?:[ -]?[A-Z0-9]{4}){2,7}(?:[ -]?[A-Z0-9]{1,3})?"
    r"|[a-z]{2}\d{2}(?:[ -]?[a-z0-9]{4}){2,7}(?:[ -]?[a-z0-9]{1,3})?)(?![A-Za-z0-9])"
)
CARD = re.compile(
    EDGE + r"(?:\d{4}([ .\u00a0-])\d{4}\1\d{4}\1\d{1,7}|\d{4}([ .\u00a0-])\d{6}\2\d{4,5}|\d{13,19})" + END
)
CARD_WORDS = re.compile(r"(?i)card|visa|mastercard|amex|maestro|карт|kart|carte|tarjeta|мир\b|卡")
# First digits and lengths that issuers use; a number of another make is no card, whatever its last digit.
ISSUERS = (
    (re.compile(r"4"), (13, 16, 19)),
    (re.compile(r"5[1-5]|2(?:22[1-9]|2[3-9]|[3-6]|7[01]|720)"), (16,)),
    (re.compile(r"3[47]"), (15,)),
    (re.compile(r"3(?:0[0-5]|[689])"), (14,)),
    (re.compile(r"6(?:011|4[4-9]|5)|62|35(?:2[89]|[3-8])|220[0-4]|9792"), (16, 17, 18, 19)),
    (re.compile(r"50|5[6-9]|6[0-9]"), (16, 18, 19)),
)  # fmt: skip
SSN = re.compile(EDGE + r"(?!000|666|9)\d{3}-(?!00)\d{2}-(?!0000)\d{4}" + END)
SNILS = re.compile(EDGE + r"\d{3}[- ]\d{3}[- ]\d{3}[- ]\d{2}" + END)


class Id(NamedTuple):
    """A national id: its shape, the module of python-stdnum that checks it, and the words that go before a weak one."""

    subtype: str
    module: str
    pattern: re.Pattern[str]
    words: re.Pattern[str] | None


def _id(subtype: str, module: str, pattern: str, words: str | None) -> Id:
    return Id(subtype, module, re.compile(f"{EDGE}(?:{pattern}){END}"), re.compile("(?i)" + words) if words else None)


IDS = (
    _id("inn_ru", "ru.inn", r"\d{10}(?:\d{2})?", r"инн|\binn\b|taxpayer|налогоплательщик"),
    _id("tckn_tr", "tr.tckimlik", r"[1-9]\d{10}", None),
    _id("tckn_tr", "tr.tckimlik", r"[1-9]\d{2} \d{3} \d{3} \d{2}", r"\bt\.?c\b|kimlik"),
    _id("ssn_us", "us.ssn", r"\d{9}|\d{3} \d{2} \d{4}", r"\bssn\b|social security"),
    _id("ein_us", "us.ein", r"\d{2}-\d{7}", r"\bein\b|employer id"),
    _id("itin_us", "us.itin", r"9\d{2}-\d{2}-\d{4}", None),
    _id("idnr_de", "de.idnr", r"\d{2} ?\d{3} ?\d{3} ?\d{3}", r"steuer|identifikationsnummer|\bidnr\b|tax id"),
    _id("dni_es", "es.dni", r"\d{8}-?[A-Z]", r"\bdni\b|\bnif\b"),
    _id("nie_es", "es.nie", r"[XYZ]-?\d{7}-?[A-Z]", None),
    _id("codicefiscale_it", "it.codicefiscale", r"[A-Z]{6}\d{2}[A-EHLMPRST]\d{2}[A-Z]\d{3}[A-Z]", None),
    _id("nir_fr", "fr.nir", r"[12] ?\d{2} ?(?:0[1-9]|1[0-2]) ?\d[\dAB] ?\d{3} ?\d{3} ?\d{2}", None),
    _id("pesel_pl", "pl.pesel", r"\d{11}", r"pesel"),
    _id("bsn_nl", "nl.bsn", r"\d{9}", r"\bbsn\b|burgerservice"),
    _id("nn_be", "be.nn", r"\d{2}\.\d{2}\.\d{2}-\d{3}\.\d{2}", None),
    _id("personnummer_se", "se.personnummer", r"(?:\d{2})?\d{6}[-+]\d{4}", r"personnummer|personal (?:id|number)"),
    _id("hetu_fi", "fi.hetu", r"\d{6}[-+A]\d{3}[0-9A-Y]", None),
    _id("cpf_br", "br.cpf", r"\d{3}\.\d{3}\.\d{3}-\d{2}", None),
    _id("cpf_br", "br.cpf", r"\d{11}", r"\bcpf\b"),
    _id("curp_mx", "mx.curp", r"[A-Z]{4}\d{6}[HM][A-Z]{5}[0-9A-Z]\d", None),
    _id("ric_cn", "cn.ric", r"\d{6}(?:19|20)\d{9}[\dX]", None),
    _id("aadhaar_in", "in_.aadhaar", r"\d{4}[ -]?\d{4}[ -]?\d{4}", r"aadha?ar"),
    _id("pan_in", "in_.pan", r"[A-Z]{3}[ABCFGHJLPT][A-Z]\d{4}[A-Z]", r"\bpan\b|permanent account"),
    _id("nhs_gb", "gb.nhs", r"\d{3}[ -]?\d{3}[ -]?\d{4}", r"\bnhs\b"),
    _id("rrn_kr", "kr.rrn", r"\d{6}-[1-4]\d{6}", None),
    _id("egn_bg", "bg.egn", r"\d{10}", r"\begn\b|егн"),
    _id("cnp_ro", "ro.cnp", r"[1-9]\d{12}", r"\bcnp\b"),
)
NINO = re.compile(
    r"(?<![A-Za-z0-9])(?!BG|GB|NK|KN|TN|NT|ZZ)[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z] ?\d{2} ?\d{2} ?\d{2} ?[A-D](?![A-Za-z0-9])"
)
NINO_WORDS = re.compile(r"(?i)national insurance|\bnino?\b|\bni n")
PASSPORT_RU = re.compile(EDGE + r"\d{2} ?\d{2},? ?(?:№ ?|N ?|номер:? ?)?\d{6}" + END)
PASSPORT_RU_WORDS = re.compile(r"(?i)паспорт|серия")
DIGITS = re.compile(r"\D")


def find(text: str) -> Iterator[Found]:
    """Each number as (subtype, start, end); the same place may come twice."""
    for match in IBAN.finditer(text):
        if span := _iban(match):
            yield "iban", *span
    for match in CARD.finditer(text):
        if _is_card(text, match):
            yield "credit_card", *match.span()
    for match in SSN.finditer(text):
        yield "ssn_us", *match.span()
    for match in SNILS.finditer(text):
        if snils_is_valid(DIGITS.sub("", match.group())):
            yield "snils_ru", *match.span()
    for match in PASSPORT_RU.finditer(text):
        if PASSPORT_RU_WORDS.search(text, max(0, match.start() - WINDOW), match.start()):
            yield "passport_ru", *match.span()
    for match in NINO.finditer(text):
        if NINO_WORDS.search(text, max(0, match.start() - WINDOW), match.start()):
            yield "nino_gb", *match.span()
    yield from _national(text)


def _national(text: str) -> Iterator[Found]:
    for kind in IDS:
        if kind.words is not None and not kind.words.search(text):
            continue
        for match in kind.pattern.finditer(text):
            named = kind.words is None or kind.words.search(text, max(0, match.start() - WINDOW), match.start())
            if named and _checks(kind.module, match.group().replace(" ", "")):
                yield kind.subtype, *match.span()
    if "снилс" in text.lower():
        for match in re.finditer(EDGE + r"\d{11}" + END, text):
            if snils_is_valid(match.group()):
                yield "snils_ru", *match.span()


@functools.cache
def _module(name: str) -> object:
    return importlib.import_module(f"stdnum.{name}")


def _checks(module: str, number: str) -> bool:
    return bool(_module(module).is_valid(number))  # type: ignore[attr-defined]


def _iban(match: re.Match[str]) -> tuple[int, int] | None:
    """The IBAN at a place; words in capitals after it may have been taken for its end."""
    from stdnum import iban

    parts = re.split(r"(?=[ -])", match.group())
    while parts:
        number = "".join(parts)
        if iban.is_valid(number):
            return match.start(), match.start() + len(number)
        parts.pop()
    return None


def _is_card(text: str, match: re.Match[str]) -> bool:
    number = DIGITS.sub("", match.group())
    if not any(start.match(number) and len(number) in lengths for start, lengths in ISSUERS):
        return False
    if not luhn_is_valid(number) or len(set(number)) < 2:
        return False
    # Long numbers in one piece are ids of all sorts, and every tenth of them has the right last digit.
    separated = len(number) != len(match.group())
    return (
        separated
        or len(number) in (15, 16)
        or bool(CARD_WORDS.search(text, max(0, match.start() - WINDOW), match.start()))
    )


def luhn_is_valid(digits: str) -> bool:
    """Whether the last digit is the Luhn check digit of the others."""
    total = 0
    for place, digit in enumerate(reversed(digits)):
        value = int(digit) * (2 if place % 2 else 1)
        total += value - 9 if value > 9 else value
    return total % 10 == 0


def snils_is_valid(digits: str) -> bool:
    """The check of Russia's pension insurance number (python-stdnum has none)."""
    if len(digits) != 11 or int(digits[:9]) <= 1001998 or len(set(digits[:9])) == 1:
        return False
    total = sum(int(digit) * weight for digit, weight in zip(digits, range(9, 0, -1), strict=False))
    return total % 101 % 100 == int(digits[9:])
