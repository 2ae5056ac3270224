"""Personal data replaced by placeholders: the same value gets the same one within a row, and none is found again."""

from __future__ import annotations

from collections import Counter
from typing import Any

from engine.data import privacy
from engine.data.clean import every_text

LEFT = frozenset(("name",))  # found by weak rules: masking what may be no name would spoil sentences


class Masker:
    """Masks the texts of one row."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._known: dict[tuple[str, str], str] = {}
        self._numbers: Counter[str] = Counter()

    def row(self, value: dict[str, Any]) -> dict[str, Any]:
        """The row with every value found replaced; `counts` says how many of each kind."""
        masked: dict[str, Any] = every_text(value, self._text)
        return masked

    def _text(self, text: str) -> str:
        parts, at = [], 0
        for kind, subtype, start, end in privacy.find(text):
            if subtype in LEFT:
                continue
            self.counts[f"{kind}.{subtype}"] += 1
            parts += [text[at:start], self._placeholder(kind, subtype, text[start:end])]
            at = end
        return "".join([*parts, text[at:]]) if at else text

    def _placeholder(self, kind: str, subtype: str, value: str) -> str:
        word = _word(kind, subtype)
        key = (word, "".join(value.split()).lower())
        if key not in self._known:
            self._numbers[word] += 1
            number = self._numbers[word]
            # An address stays an address for those who read the text; .invalid belongs to nobody.
            self._known[key] = f"person{number}@mail.invalid" if word == "e-mail" else f"[{word} {number}]"
        return self._known[key]


def _word(kind: str, subtype: str) -> str:
    if kind == "secret":
        return "secret"
    if subtype.startswith("phone"):
        return "phone number"
    return {"email": "e-mail", "credit_card": "card number", "iban": "IBAN", "ip": "IP address"}.get(
        subtype, "ID number"
    )
