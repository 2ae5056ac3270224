"""The recipe's `backup` key: where a run's copy goes, what of it, and what counts as proved there.

backup: s3:bucket/prefix
backup: {to: "s3:bucket/prefix", keep: [best, last, final], verify: etag, rows: true, limit: 50M}
backup: none
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.errors import UsageError
from engine.text import _

if TYPE_CHECKING:
    from engine.findings import Finding
    from engine.recipe.model import Recipe

KEEP = ("best", "last", "final", "all", "adapter_only")
DEFAULT_KEEP = ("best", "last", "final")
VERIFY = ("etag", "full")
KEYS = ("to", "keep", "verify", "rows", "limit")
OFF = ("none", "off", "")
REMOTE = re.compile(r"[\w.][\w.+@ -]*:")
SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kKMGT]?)(?:i?B)?(?:/s)?\Z")
_UNITS = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


@dataclass(frozen=True)
class Policy:
    """What goes to one remote, and what counts as proved there."""

    remote: str
    keep: tuple[str, ...] = DEFAULT_KEEP
    verify: str = "etag"
    rows: bool = True  # the tokenized rows: a resume reads them, not the dataset
    limit: float | None = None  # bytes per second

    def to(self, run: str) -> str:
        """Where a run's copy lies: a folder of its name."""
        return f"{self.remote.rstrip('/')}{'' if self.remote.endswith(':') else '/'}{run}"


def remote_name(remote: str) -> str:
    """The name rclone has for a remote (before the colon); empty for a folder of this machine."""
    return "" if remote.startswith("/") else remote.partition(":")[0]


def check_remote(remote: str, where: str | None = None) -> str:
    """The remote as given.

    Raises:
        UsageError: it is none, or holds options (which could be secrets) instead of a name.
    """
    text = remote.strip()
    named = REMOTE.match(text)
    if text.startswith(":") or (named and "," in text.split(":", 1)[0]) or ("," in text and "=" in text.split(":")[0]):
        raise UsageError(
            _("a remote is named, not described: its options would stand in the recipe and in logs"),
            where=where,
            fix=_("make one with `ftui backup setup`, and write NAME:bucket/folder"),
            kind="bad_remote",
        )
    if not (named or text.startswith("/")) or "\n" in text or (named and text == named[0]):
        raise UsageError(
            _("'{remote}' is not a remote").format(remote=text[:80]),
            where=where,
            fix=_("write NAME:bucket/folder; `ftui backup setup` makes a NAME"),
            kind="bad_remote",
        )
    return text


def rate(text: Any, where: str | None = None) -> float | None:
    """Bytes per second from `50M`, `1.5G`, a number of bytes, or `off`.

    Raises:
        UsageError: it is none of these.
    """
    if text is None or str(text).lower() in ("off", "none", "0"):
        return None
    match = SIZE.match(str(text).strip())
    if match is None or not float(match[1]):
        raise UsageError(
            _("'{text}' is not a rate").format(text=str(text)[:40]),
            where=where,
            fix=_("write 50M for 50 MB a second, or off"),
            kind="bad_rate",
        )
    return float(match[1]) * _UNITS[match[2]]


def parse(value: Any, default: str | None = None, where: str = "backup") -> Policy | None:
    """The policy that a recipe's `backup` (and the settings' default remote) stand for; None: nothing is backed up.

    Raises:
        UsageError: the value is wrong; `where` names the key.
    """
    if value is None:
        return Policy(check_remote(default, "settings: backup")) if default else None
    if isinstance(value, str):
        return None if value.strip().lower() in OFF else Policy(check_remote(value, where))
    if not isinstance(value, dict):
        raise _wrong(where, _("a remote or a mapping is wanted"), _("write backup: NAME:bucket/folder"))
    for key in value:
        if key not in KEYS:
            raise _wrong(f"{where}.{key}", _("there is no key '{key}'").format(key=key), _known(KEYS))
    remote = value.get("to", default)
    if not isinstance(remote, str) or not remote.strip():
        raise _wrong(f"{where}.to", _("it is not said where to"), _('write to: "NAME:bucket/folder"'))
    keep = value.get("keep", DEFAULT_KEEP)
    keep = (keep,) if isinstance(keep, str) else keep
    if not isinstance(keep, list | tuple) or not keep:
        raise _wrong(f"{where}.keep", _("a list is wanted"), _known(KEEP))
    for part in keep:
        if part not in KEEP:
            raise _wrong(f"{where}.keep", _("'{value}' cannot be kept").format(value=str(part)[:40]), _known(KEEP))
    verify = value.get("verify", "etag")
    if verify not in VERIFY:
        raise _wrong(
            f"{where}.verify", _("'{value}' is no way to verify").format(value=str(verify)[:40]), _known(VERIFY)
        )
    rows = value.get("rows", True)
    if not isinstance(rows, bool):
        raise _wrong(f"{where}.rows", _("true or false is wanted"), _known(("true", "false")))
    names = tuple(dict.fromkeys(str(part) for part in keep))
    if names == ("adapter_only",):
        names = (*DEFAULT_KEEP, "adapter_only")
    limit = rate(value.get("limit"), f"{where}.limit")
    return Policy(check_remote(remote, f"{where}.to"), names, verify, rows, limit)


def _known(values: tuple[str, ...]) -> str:
    return _("known: {names}").format(names=", ".join(values))


def _wrong(where: str, reason: str, fix: str) -> UsageError:
    return UsageError(_("backup: {reason}").format(reason=reason), where=where, fix=fix, kind="bad_backup")


def check(recipe: Recipe) -> list[Finding]:
    """What is wrong with a recipe's `backup`."""
    value = recipe.given.get("backup")
    if value is None:
        return []
    try:
        parse(value, None if isinstance(value, str) or "to" in value else _default())
    except UsageError as error:
        return [recipe.finding("bad_backup", "error", error.what, error.fix or "", ("backup",))]
    return []


def _default() -> str | None:
    from engine import settings

    return settings.load().backup
