"""Characters that a reader does not see and a model does: controls, invisible signs, text read in a wrong encoding."""

from __future__ import annotations

import re
from collections.abc import Callable

Say = Callable[..., None]  # say(kind, value, subtype): one finding of the row at hand

# Everything suspicious in one class, so that clean text costs one pass.
SUSPECT = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2069\u115f\u1160\u3164\uffa0\ufeff\ufffd\ufffe\uffff"
    "\U000e0000-\U000e007f\U000e0100-\U000e01ef\ud800-\udfff]"
)
PRINTABLE = re.compile("[\u115f\u1160\u3164\uffa0\ufffd\U000e0100-\U000e01ef]")  # of these, what Python calls so
ANSI = re.compile(
    r"\x1b\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)"  # a title or a link
    r"|(?:\x1b\[|\x9b)[0-?]{0,40}[ -/]{0,8}[@-~]"  # colors, movements
    r"|\x1b(?:[()#%*+][0-9A-Za-z]|[=>78NOPX^_c\[\]])"
)
BIDI = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
# Marks of direction that right-to-left text uses in good faith; beside other letters they are only in the way.
DIRECTION_MARKS = frozenset("\u200e\u200f\u061c")
JOINERS = frozenset("\u200c\u200d")
ZERO_WIDTH = frozenset("\u115f\u1160\u3164\uffa0\u200b\u2060\u2061\u2062\u2063\u2064\ufeff\u180e\u00ad")
RIGHT_TO_LEFT = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]")
# Scripts that are written with joiners between letters (Arabic, Indic, Mongolian, ...) or without spaces (Thai, Khmer).
JOINING = re.compile("[\u0600-\u07ff\u0840-\u0dff\u0e00-\u109f\u1780-\u18af\ufb50-\ufdff\ufe70-\ufefc]")
EMOJI = re.compile("[\u00a9\u00ae\u203c-\u3299\ufe0f\u20e3\U0001f000-\U0001faff\U000e0020-\U000e007f]")
IDEOGRAPH = re.compile("[\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
INVISIBLE = "\u00ad\u115f\u1160\u180e\u200b\u200c\u200d\u2060\u2800\u3164\ufeff\uffa0"
FEW = 3  # soft hyphens come with text from web pages and books; one here and there is no reason to speak
FLAG = "\U0001f3f4"  # a black flag: tag characters after it spell a region

LEAD2, LEAD3, LEAD4 = "[\u00c2-\u00df]", "[\u00e0-\u00ef]", "[\u00f0-\u00f4]"
# What the bytes 0x80-0xbf look like in cp1252 and Latin-1.
TAIL = "[\u0080-\u00bf\u0152\u0153\u0160\u0161\u0178\u017d\u017e\u0192\u02c6\u02dc\u2013-\u2022\u2026\u2030\u2039\u203a\u20ac\u2122]"
MOJIBAKE = re.compile(f"(?:{LEAD2}{TAIL}|{LEAD3}{TAIL}{{2}}|{LEAD4}{TAIL}{{3}})")
QUIET_TAIL = frozenset("\u00a0\u00ab\u00bb\u2013\u2014\u2018\u2019\u201a\u201c\u201d\u201e\u2026\u2039\u203a")
# The same through cp1251: Cyrillic text turns into runs of "Р" and "С" with rare letters and signs between.
CYRILLIC_TAIL = (
    "[\u0080-\u00bf\u0402-\u040f\u0452-\u045f\u0490\u0491\u2013-\u2022\u2026\u2030\u2039\u203a\u20ac\u2116\u2122]"
)
CYRILLIC_MOJIBAKE = re.compile(f"(?:[\u0420\u0421]{CYRILLIC_TAIL}){{3,}}")


def check(text: str, say: Say) -> None:
    """Say what is odd about the characters of a row's text."""
    # Nearly all rows end here: what is printable is not suspect, the replacement character aside.
    plain = text.replace("\n", "").replace("\t", "").replace("\r", "")
    odd = not plain.isprintable() or (not text.isascii() and PRINTABLE.search(plain))
    if odd and (match := SUSPECT.search(text)):
        _suspects(text, match.start(), say)
    if not text.isascii():
        _mojibake(text, say)


def _suspects(text: str, start: int, say: Say) -> None:
    escaped = {at for match in ANSI.finditer(text, max(0, start - 1)) for at in range(*match.span())}
    if escaped:
        say("ansi_escape")
    right_to_left = RIGHT_TO_LEFT.search(text) is not None
    hyphens = text.count("\u00ad") > FEW
    for match in SUSPECT.finditer(text, start):
        sign, at = match.group(), match.start()
        name = f"U+{ord(sign):04X}"
        if sign == "\ufffd":
            say("replacement_char")
        elif "\ud800" <= sign <= "\udfff":
            say("lone_surrogate")
        elif sign in BIDI:
            say("bidi_control", name)
        elif sign in DIRECTION_MARKS:
            if not right_to_left:
                say("bidi_control", name)
        elif sign >= "\U000e0000":
            if not _spells_flag(text, at):
                say("tag_characters")
        elif sign in JOINERS:
            if not _joins(text, at):
                say("zero_width", name)
        elif sign in ZERO_WIDTH:
            if hyphens if sign == "\u00ad" else not (sign == "\u200b" and _joins(text, at)):
                say("zero_width", name)
        elif at not in escaped:
            say("control_char", name)


def _joins(text: str, at: int) -> bool:
    """Whether a joiner stands where one belongs: between emoji, or between letters of a joining script."""
    before, after = text[max(0, at - 1) : at], text[at + 1 : at + 2]
    emoji = bool(before and after and EMOJI.match(before) and EMOJI.match(after))
    return emoji or bool(before and JOINING.match(before))


def _spells_flag(text: str, at: int) -> bool:
    """Whether the tag characters here follow a flag (as those of England, Scotland and Wales do).

    Or, of the selectors beyond them, an ideograph whose variant they choose; in a row they hide bytes.
    """
    if text[at] >= "\U000e0100":
        return at > 0 and IDEOGRAPH.match(text[at - 1]) is not None
    while at > 0 and text[at] >= "\U000e0000":
        at -= 1
    return text[at] == FLAG


def is_blank(text: str) -> bool:
    """Whether a reader sees nothing: white space and invisible characters only."""
    return not text.strip() or not (text.isascii() or text.strip(INVISIBLE + " \t\r\n\u00a0").strip())


def without_odd(text: str) -> str:
    """The text without the characters that `check` warns of as invisible or controlling; all others stay."""
    plain = text.replace("\n", "").replace("\t", "").replace("\r", "")
    if plain.isprintable() and (plain.isascii() or not PRINTABLE.search(plain)):
        return text
    text = ANSI.sub("", text)
    right_to_left = RIGHT_TO_LEFT.search(text) is not None
    return SUSPECT.sub(lambda match: match.group() if _belongs(text, match.start(), right_to_left) else "", text)


def _belongs(text: str, at: int, right_to_left: bool) -> bool:
    """Whether a suspicious character has its place where it stands."""
    sign = text[at]
    if sign in JOINERS or sign == "\u200b":
        return _joins(text, at)
    if sign in DIRECTION_MARKS:
        return right_to_left
    return sign in ("\u00ad", "\ufffd") or (sign >= "\U000e0000" and _spells_flag(text, at))


def _mojibake(text: str, say: Say) -> None:
    for match in MOJIBAKE.finditer(text):
        found = match.group()
        # Two signs of which the second is a quote or a dash also end words in capitals: they are no proof.
        if (len(found) > 2 or found[1] not in QUIET_TAIL) and _decodes(found, "cp1252"):
            say("mojibake", found)
            return
    match_cyrillic = CYRILLIC_MOJIBAKE.search(text)
    if match_cyrillic and _decodes(match_cyrillic.group(), "cp1251"):
        say("mojibake", match_cyrillic.group()[:12])


def _decodes(text: str, page: str) -> bool:
    try:
        raw = b"".join(c.encode(page) if ord(c) > 0xFF or _fits(c, page) else bytes([ord(c)]) for c in text)
        raw.decode("utf-8")
    except (UnicodeDecodeError, UnicodeEncodeError):
        return False
    return True


def _fits(sign: str, page: str) -> bool:
    try:
        sign.encode(page)
    except UnicodeEncodeError:
        return False
    return True
