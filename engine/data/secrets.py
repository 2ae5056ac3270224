"""Keys and passwords in text: the shapes of known services, and assignments of a value that looks random."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from engine.data.spans import Spans

# A key is not part of a longer word.
START = r"(?<![A-Za-z0-9_])"
END = r"(?![A-Za-z0-9_-])"


class Shape(NamedTuple):
    """One service's key: where any of `marks` occurs in a text, `pattern` is looked for."""

    subtype: str
    marks: tuple[str, ...]
    pattern: re.Pattern[str]
    random: bool  # the key must look random, because its shape is also that of ordinary words


def _shape(subtype: str, marks: str, pattern: str, *, random: bool = True) -> Shape:
    return Shape(subtype, tuple(marks.split()), re.compile(pattern, re.DOTALL if "PuTTY" in pattern else 0), random)


SHAPES = (
    Shape(
        "private_key",
        ("PRIVATE KEY",),
        re.compile(r"-----BEGIN (?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----(?:.{16,8192}?-----END [A-Z0-9 ]*-----|.{16,})", re.DOTALL),
        False,
    ),
    _shape("age_key", "AGE-SECRET-KEY-", START + r"AGE-SECRET-KEY-1[0-9A-Z]{40,}"),
    _shape("anthropic_key", "sk-ant-", START + r"sk-ant-[A-Za-z0-9_-]{20,}"),
    _shape("openai_key", "sk-", START + r"sk-(?!ant-)[A-Za-z0-9_-]{20,}"),
    _shape("github_token", "ghp_ gho_ ghu_ ghs_ ghr_", START + r"gh[pousr]_[A-Za-z0-9]{36,}"),
    _shape("github_token", "github_pat_", START + r"github_pat_[A-Za-z0-9_]{40,}"),
    _shape("gitlab_token", "glpat-", START + r"glpat-[A-Za-z0-9_-]{20,}"),
    _shape("aws_key", "AKIA ASIA", START + r"(?:AKIA|ASIA)[A-Z2-7][A-Z0-9]{15}" + END, random=False),
    _shape("google_key", "AIza", START + r"AIza[A-Za-z0-9_-]{35}"),
    _shape("google_key", "GOCSPX- ya29.", START + r"(?:GOCSPX-[A-Za-z0-9_-]{20,}|ya29\.[A-Za-z0-9_-]{20,})"),
    _shape("slack_token", "xox", START + r"xox[abeoprs]-[A-Za-z0-9-]{10,}"),
    _shape("slack_webhook", "hooks.slack.com/", r"hooks\.slack\.com/(?:services|workflows)/[A-Za-z0-9/_-]{20,}"),
    _shape("discord_webhook", "api/webhooks/", r"discord(?:app)?\.com/api/webhooks/\d{15,}/[A-Za-z0-9_-]{40,}"),
    _shape("stripe_key", "k_live_ k_test_", START + r"[srp]k_(?:live|test)_[A-Za-z0-9]{16,}"),
    _shape("stripe_key", "whsec_", START + r"whsec_[A-Za-z0-9+/]{24,}"),
    _shape("sendgrid_key", "SG.", START + r"SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{30,}"),
    _shape("huggingface_token", "hf_", START + r"hf_[A-Za-z0-9]{30,}"),
    _shape("npm_token", "npm_", START + r"npm_[A-Za-z0-9]{36}" + END),
    _shape("pypi_token", "pypi-", START + r"pypi-AgE[A-Za-z0-9_-]{50,}"),
    _shape("telegram_token", ":AA", r"(?<!\d)\d{8,10}:AA[A-Za-z0-9_-]{33}" + END),
    _shape("jwt", "eyJ", START + r"eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}"),
    _shape("cloud_token", "dop_v1_ doo_v1_ shpat_ shpss_ dapi", START + r"(?:do[op]_v1_[a-f0-9]{64}|shp(?:at|ss)_[a-fA-F0-9]{32}|dapi[a-f0-9]{32})"),
    _shape("cloud_token", "AQVN y0_ t1.", START + r"(?:AQVN[A-Za-z0-9_-]{35,38}|y0_[A-Za-z0-9_-]{50,}|t1\.[A-Z0-9a-z_-]+\.[A-Z0-9a-z_-]{80,})"),
    _shape("api_key", "r8_ gsk_ xai- pplx- fw_ tvly- nvapi-", START + r"(?:r8_|gsk_|xai-|pplx-|fw_|tvly-|nvapi-)[A-Za-z0-9_-]{24,}"),
    _shape("api_key", "lin_api_ ntn_ figd_ pcsk_ hvs. PMAK- NRAK- sntrys_ glsa_ sbp_ pscale_ SSWS", START + r"(?:(?:lin_api_|ntn_|figd_|pcsk_|hvs\.|PMAK-|sntrys_|glsa_|sbp_|pscale_(?:tkn|pw)_|SSWS 00)[A-Za-z0-9_-]{32,}|NRAK-[A-Z0-9]{27})"),
    _shape("api_key", "secret_ key- sq0 EAA", START + r"(?:secret_[A-Za-z0-9]{43}|key-[a-f0-9]{32}|sq0(?:atp|csp)-[A-Za-z0-9_-]{22,43}|EAA[A-Z][A-Za-z0-9_-]{56,})" + END),
    _shape("registry_token", "dckr_pat_ ATATT3 .atlasv1. dp.pt.", START + r"(?:dckr_pat_[A-Za-z0-9_-]{24,}|ATATT3[A-Za-z0-9_=-]{60,}|[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_=-]{60,}|dp\.pt\.[A-Za-z0-9]{40,})"),
    _shape("mapbox_token", "k.eyJ", START + r"[ps]k\.eyJ[A-Za-z0-9_-]{20,}\.[A-Za-z0-9_-]{20,}"),
    _shape("discord_token", "M N O", START + r"[MNO][A-Za-z0-9_-]{23,27}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,40}" + END),
    _shape("vk_token", "vk1.a.", START + r"vk1\.a\.[A-Za-z0-9_-]{60,}"),
    _shape("broker_token", "t.", START + r"t\.[A-Za-z0-9_-]{86}" + END),
    _shape("private_key", "PuTTY-User-Key-File", r"PuTTY-User-Key-File-\d: (?:.{16,8192}?Private-MAC: \w+|.{16,})", random=False),
    _shape("password", "sshpass", r"sshpass\s+-p\s*['\"]?(?P<value>[^\s'\"]{6,64})", random=False),
    _shape("password", "curl", r"curl\b[^\n]{0,80}?\s(?:-u|--user)\s*['\"]?[\w.@-]{1,64}:(?P<value>[^\s'\"]{6,64})", random=False),
    _shape("azure_key", "AccountKey= SharedAccessKey=", r"(?:AccountKey|SharedAccessKey)=[A-Za-z0-9+/]{40,}={0,2}"),
    _shape("telephony_key", "SK AC", START + r"(?:SK|AC)[a-f0-9]{32}" + END),
    _shape("url_password", "://", r"[a-z][a-z0-9+.-]{2,}://[^\s:/@'\"<>]{0,64}:(?P<value>[^\s:/@'\"<>]{3,128})@[A-Za-z0-9.-]+", random=False),
)  # fmt: skip
SHORTEST = 14  # user:pass@host, as the shortest of all
MARKS = [(mark, shape) for shape in SHAPES for mark in shape.marks]
ASSIGNMENT = re.compile(
    r"""(?ix) (?: api[_-]?key | secret | token | passw(?:or)?d | passwd | pwd | access[_-]?key | auth[_-]?key
        | private[_-]?key | client[_-]?secret | credential s? | bearer | authorization | парол[ья] | şifre | parola )
        [A-Za-z0-9_]* ["']? \s{0,3} (?: : | = | => | := | \bis\b | \s ) \s{0,3} (?:bearer\s+|basic\s+)?
        ["'`]? (?P<value> [A-Za-z0-9+/_.~!@\#$%^&*-]{8,200} =* ) ["'`]?"""
)
ASSIGNMENT_WORDS = (
    "key", "secret", "token", "passw", "pwd", "credential", "bearer", "authorization", "парол", "şifre", "parola",
)  # fmt: skip
PLACEHOLDER = re.compile(
    r"(?i)your|my[_-]|example|sample|placeholder|changeme|change_me|insert|xxx|\*\*\*|\.\.\.|<|>|dummy|redacted|"
    r"todo|replace|here|fake|test[_-]?(?:key|token)|user|pass(?:word)?$|^\$|\{|os\.|env|getenv|process\.|config|12345678"
)
HEX = re.compile(r"[0-9a-f]+\Z|[0-9A-F]+\Z")
KEY_NAME = re.compile(r"(?i)api[_-]?key|secret|token")
UUID = re.compile(r"(?i)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")


def find(text: str, lower: str) -> Iterator[tuple[str, int, int]]:
    """Each secret as (subtype, start, end).

    Args:
        text: the text.
        lower: the same in lower case.
    """
    spans = Spans()
    # A key is a long word; most rows have none, and need not be searched for every service's mark.
    long = max(map(len, text.split()), default=0) >= SHORTEST or "sshpass" in text or "curl" in text
    for shape in dict.fromkeys([shape for mark, shape in MARKS if mark in text] if long else []):
        for match in shape.pattern.finditer(text):
            start, end = match.span("value") if "value" in shape.pattern.groupindex else match.span()
            value = text[start:end]
            if shape.random and not looks_random(value):
                continue
            if shape.subtype in ("url_password", "password") and PLACEHOLDER.search(value):
                continue
            if spans.take(start, end):
                yield shape.subtype, start, end
    if [word for word in ASSIGNMENT_WORDS if word in lower]:
        for match in ASSIGNMENT.finditer(text):
            start, end = match.span("value")
            before = match.group()[: start - match.start()]
            if _is_secret_value(match.group("value"), before) and spans.take(start, end):
                yield "password" if "pass" in match.group().lower()[:16] else "api_key", start, end


def _is_secret_value(value: str, before: str) -> bool:
    """Whether what is assigned to a key looks made by chance, not by an author."""
    if UUID.match(value):  # some services give ids as keys; most ids are none
        return any(sign in before for sign in "=:") and KEY_NAME.search(before) is not None
    if PLACEHOLDER.search(value):
        return False
    explicit = any(sign in before for sign in "=:")
    if not explicit and (len(value) < 16 or HEX.match(value)):
        return False  # "token 5f3a…" may be any hash; `token = "5f3a…"` is not
    if not any(c.isdigit() for c in value) or not any(c.isalpha() for c in value):
        return False
    signs = sum(not c.isalnum() for c in value)
    if len(value) < 16:
        # A password: letters, digits and a sign, in the way no identifier is written.
        return explicit and signs > 0 and any(c in "!@#$%^&*" for c in value) and "(" not in value
    return signs <= len(value) // 4 and looks_random(value)


def looks_random(value: str) -> bool:
    """Whether a key's letters are spread as chance spreads them: not words, not "xxxx", not an alphabet."""
    body = re.sub(r"^[A-Za-z]{2,12}[-_.]", "", value)
    if len(body) < 10:
        body = value
    counts = Counter(body)
    entropy = -sum(n / len(body) * math.log2(n / len(body)) for n in counts.values())
    if entropy < min(3.0, 0.75 * math.log2(len(body))):
        return False
    digits = sum(c.isdigit() for c in body)
    upper = sum(c.isupper() for c in body)
    lower = sum(c.islower() for c in body)
    if digits == 0:
        return upper > 2 and lower > 2 and _switches(body) > len(body) / 5
    steps = sum(ord(b) - ord(a) == 1 for a, b in itertools.pairwise(body))
    return steps < 0.5 * len(body)


def _switches(text: str) -> int:
    """How often upper and lower case change: random keys do it at every second letter, camelCase at every sixth."""
    return sum(a.isupper() != b.isupper() for a, b in itertools.pairwise(text))
