"""Personal data and secrets in a text: where they are, what they are, and a mask that shows nothing of them."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator

from engine.data import identifiers, phones, secrets
from engine.data.spans import Spans

Found = tuple[str, int, int]
# Every number that this module looks for has six digits or more, close together, or is an address with dots.
DIGITS = re.compile(r"\d[\d.]")
NUMBERISH = re.compile(
    r"\d[\d \u00a0().\-/\u2010-\u2013]{4,}\d|[A-Za-z]{2}\d{2} ?[A-Za-z0-9]{4}|\d\.\d+\.\d|[A-Z]{5}\d|[XYZ]-?\d{7}"
)
EMAIL = re.compile(
    r"(?<![\w.%+/@-])[\w%+-]+(?:[.'][\w%+-]+)*@(?:[^\W_](?:[\w-]*[^\W_])?\.)+(?P<top>[^\W\d_]{2,24}|xn--[a-z0-9-]+)(?![\w@-])"
)
SPELLED_EMAIL = re.compile(
    r"(?i)(?<![\w.])[\w%+-]+(?:\.[\w%+-]+)*\s?[\[(]at[\])]\s?[\w-]+(?:\s?(?:\.|[\[(]dot[\])])\s?[\w-]+)*\s?(?:\.|[\[(]dot[\])])\s?[a-z]{2,12}\b"
)
# What an address with an @ ends with when it is a file, or a program's own name for something.
NOT_TOP = frozenset(
    (
        "png", "jpg", "jpeg", "gif", "svg", "webp", "bmp", "ico", "pdf", "js", "ts", "jsx", "tsx", "py", "rb", "go", "rs",
        "java", "css", "html", "htm", "json", "yaml", "yml", "xml", "md", "txt", "csv", "zip", "tar", "gz", "exe", "dll",
        "so", "service", "socket", "timer", "target", "local", "localhost", "internal", "invalid", "lan",
    )
)  # fmt: skip
NOT_PERSONS = frozenset(("git", "hg", "svn", "noreply", "no-reply", "donotreply", "do-not-reply", "postmaster"))
IPV4 = re.compile(
    r"(?:(?<![\w.\-/=v])|(?<=://))(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?![\w-]|\.\d)"
)
IPV6 = re.compile(r"(?<![\w:.])(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}(?![\w:])")
IP_WORDS = re.compile(
    r"(?i)\bip\b|\bipv4\b|\baddress|\bhost|\bserver|\bclient|\blogin|\bfrom\b|адрес|сервер|sunucu|адреса"
)
VERSION_WORDS = re.compile(
    r"(?i)(?:\bv|version|ver\.?|release|build|firmware|driver|верси\w|sürüm|section|§|clause|==|>=)\s*:?\s*$"
)
WELL_KNOWN = frozenset(("8.8.8.8", "8.8.4.4", "1.1.1.1", "1.0.0.1", "9.9.9.9"))
NAMES = (
    re.compile(r"\b(?:[Mm]y (?:full )?name is|[Ff]ull name:|[Mm]rs?\.|[Mm]s\.|[Dd]r\.|[Pp]rof\.)\s+((?:[A-Z][a-zà-ÿ'’-]+)(?:\s[A-Z][a-zà-ÿ'’-]+){1,2})\b"),
    re.compile(r"(?:[Мм]еня зовут|ФИО:?|[Гг]ражданин(?:ка)?|[Уу]важаем(?:ый|ая))\s+([А-ЯЁ][а-яё-]+(?:\s[А-ЯЁ][а-яё-]+){1,2})"),
    re.compile(r"\b([А-ЯЁ][а-яё-]+\s[А-ЯЁ][а-яё]+\s[А-ЯЁ][а-яё]+(?:вич|вна|ична|ьич))\b"),
    re.compile(r"\b(?:[Aa]dım|[Ii]smim|[Aa]d[ıi] soyad[ıi]:|[Ss]ayın)\s+([A-ZÇĞİÖŞÜ][a-zçğıöşü]+(?:\s[A-ZÇĞİÖŞÜ][a-zçğıöşü]+){1,2})\b"),
)  # fmt: skip
NAME_MARKS = (
    "name", "mr.", "mrs.", "ms.", "dr.", "prof.", "зовут", "фио", "граждан", "уважаем", "вич", "вна", "ична",
    "adım", "ismim", "soyad", "sayın",
)  # fmt: skip


def find(text: str, lower: str | None = None) -> list[tuple[str, str, int, int]]:
    """All personal data and secrets of a text as (kind, subtype, start, end), in order and without overlaps.

    Args:
        text: the text.
        lower: the same in lower case, where the caller has it.
    """
    lower = text.lower() if lower is None else lower
    found = [("secret", *item) for item in secrets.find(text, lower)]
    found += [("pii", *item) for item in _personal(text, lower)]
    if len(found) < 2:
        return found
    # The longest at a place wins; among equals the one found first (secrets, then the surer kinds).
    spans = Spans()
    taken = [item for item in sorted(found, key=lambda item: item[2] - item[3]) if spans.take(item[2], item[3])]
    return sorted(taken, key=lambda item: item[2])


def _personal(text: str, lower: str) -> Iterator[Found]:
    if "@" in text or "at)" in lower or "at]" in lower:
        yield from _emails(text)
    if DIGITS.search(text) and NUMBERISH.search(text):
        yield from identifiers.find(text)
        yield from phones.find(text)
        yield from _ipv4(text)
    if text.count(":") >= 2:
        yield from _ipv6(text)
    if [mark for mark in NAME_MARKS if mark in lower]:
        for pattern in NAMES:
            for match in pattern.finditer(text):
                yield "name", *match.span(1)


def _emails(text: str) -> Iterator[Found]:
    """Addresses, those too that are spelled out for people."""
    for match in SPELLED_EMAIL.finditer(text):
        yield "email", *match.span()
    for match in EMAIL.finditer(text):
        local = match.group().split("@")[0].lower()
        if match.group("top").lower() in NOT_TOP or local in NOT_PERSONS:
            continue
        if (
            text[match.start() - 1 : match.start()] == ":"
            and "://" in text[max(0, match.start() - 80) : match.start()].split()[-1]
        ):
            continue  # the password in an address, and the machine
        if text[match.end() : match.end() + 1] == ":" and text[match.end() + 1 : match.end() + 2].isalnum():
            continue  # user@host.name:path is a place on a machine
        yield "email", *match.span()


def _ipv4(text: str) -> Iterator[Found]:
    for match in IPV4.finditer(text):
        address = match.group()
        octets = [int(part) for part in address.split(".")]
        if any(len(part) > 1 and part[0] == "0" for part in address.split(".")) or not _is_someones(address):
            continue
        before = text[max(0, match.start() - 24) : match.start()]
        if VERSION_WORDS.search(before):
            continue
        # 1.2.3.4 may be a version or a section as well; small numbers count only beside a word that says address.
        if max(octets) < 32 and not IP_WORDS.search(before):
            continue
        yield "ip", *match.span()


def _is_someones(address: str) -> bool:
    """Whether an address may lead to somebody: private, loopback and multicast ones do not.

    Those kept for documentation count: nobody can tell a copied example from a changed one.
    """
    ip = ipaddress.ip_address(address)
    if address in WELL_KNOWN or ip.is_loopback or ip.is_multicast or ip.is_unspecified or ip.is_link_local:
        return False
    if ip.version == 4:
        first, second = (int(part) for part in address.split(".")[:2])
        private = first == 10 or (first == 172 and 16 <= second < 32) or (first == 192 and second == 168)
        return not private and 0 < first < 240
    return True


def _ipv6(text: str) -> Iterator[Found]:
    for match in IPV6.finditer(text):
        address = match.group()
        if address.count(":") < 7 and "::" not in address:
            continue
        if not any(c.isdigit() for c in address) or len(address) < 6:
            continue
        try:
            if _is_someones(address):
                yield "ip", *match.span()
        except ValueError:
            continue


def masked(subtype: str, value: str) -> str:
    """A value as it may be printed: how it begins, and no more."""
    if subtype == "email":
        local, _at, domain = value.partition("@")
        return f"{local[:1]}***@{domain[:1]}***.{domain.rpartition('.')[2]}"
    if subtype == "name":
        return " ".join(part[:1] + "***" for part in value.split())
    if subtype.startswith("phone") and value.startswith("+"):
        return value[:2] + "***"
    return value[:2] + "***"
