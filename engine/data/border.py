"""Whether personal data that was found would cross a border by being on this server, as far as it shows.

National ids, phone numbers and accounts name a country; e-mail addresses, cards and names do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.text import _

# Countries between which personal data moves freely (EU and EEA), as their codes.
EUROPE = frozenset((
    "AT", "BE", "BG", "CY", "CZ", "DE", "DK", "EE", "ES", "FI", "FR", "GR", "HR", "HU", "IE", "IS", "IT", "LI", "LT",
    "LU", "LV", "MT", "NL", "NO", "PL", "PT", "RO", "SE", "SI", "SK",
))  # fmt: skip


def crossed(personal: Mapping[str, int], server: str | None) -> dict[str, Any]:
    """What the kinds that were found say of countries.

    Args:
        personal: how many of each kind, by `pii.<subtype>`.
        server: the country where this server stands, as two letters; None: not known.

    Returns:
        `server`, `people` (country: how many values name it) and `crosses`: those of other countries than the
        server's; None where the server's is not known.
    """
    people: dict[str, int] = {}
    for kind, count in personal.items():
        country = kind.rpartition("_")[2].upper()
        if kind.startswith("pii.") and "_" in kind and len(country) == 2:
            people[country] = people.get(country, 0) + count
    here = server.upper() if server else None
    crosses = None if here is None else sorted(country for country in people if not _free(country, here))
    return {"server": here, "people": dict(sorted(people.items())), "crosses": crosses}


def _free(country: str, here: str) -> bool:
    return country == here or (country in EUROPE and here in EUROPE)


def sentence(document: Mapping[str, Any]) -> str:
    """The same in words."""
    here, people = document["server"], ", ".join(document["people"])
    laws = _("(GDPR, KVKK, Federal Law 152-FZ and others have conditions for that)")
    if here is None:
        said = _(
            "The original files hold this data. If this server stands in another country than the people it is about, "
            "bringing the files here is a transfer across a border {laws}."
        )
        if people:
            said += " " + _("By its ids and phone numbers it is about people in: {people}.").format(people=people)
        return said.format(laws=laws) + " " + _("Set `country` in the settings, and this says which.")
    if document["crosses"]:
        return _(
            "This server stands in {here}, and by its ids and phone numbers the data is about people in: {people}. "
            "Having the original files here is a transfer across a border {laws}."
        ).format(here=here, people=", ".join(document["crosses"]), laws=laws)
    return _(
        "This server stands in {here}. No id or phone number of another country was found; e-mail addresses, cards and "
        "names do not say where somebody lives."
    ).format(here=here)
