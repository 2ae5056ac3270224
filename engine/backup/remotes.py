"""Making a remote and proving that it can be used: list, write, read back, delete, with the cause where one fails."""

from __future__ import annotations

import configparser
import os
import re
import secrets
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engine.backup import hashing
from engine.backup.providers import PROVIDERS
from engine.backup.rclone import Daemon, RcloneError
from engine.errors import FtuiError, UsageError
from engine.files import Lock, write_atomic
from engine.text import _

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}\Z")
PROBE = ".ftui-preflight"
PROBE_SIZE = 5 * hashing.MIB + 1  # two parts: how the server makes the ETag of an object that comes in parts


def own_config() -> Path:
    """Our rclone.conf, beside the settings."""
    from engine import settings

    return settings.path().with_name("rclone.conf")


def names_in(config: Path) -> list[str]:
    """The remotes of an rclone.conf ([] where it cannot be read: rclone says why when it is used)."""
    return _read(config).sections()


def _read(config: Path) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(strict=False, interpolation=None, default_section="\0")
    try:
        parser.read_string(config.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, configparser.Error):
        pass
    return parser


def write(name: str, values: dict[str, str]) -> Path:
    """Put a remote into our rclone.conf (mode 0600); one of that name is replaced.

    Raises:
        UsageError: the name or a value cannot be written.
        FtuiError: the file cannot be.
    """
    if not NAME.match(name):
        raise UsageError(
            _("'{name}' cannot be a remote's name").format(name=name[:80]),
            fix=_("use letters, digits, '.', '_' and '-'"),
            kind="bad_remote",
        )
    for key, value in values.items():
        if any(ord(sign) < 32 or ord(sign) == 127 for sign in value):
            raise UsageError(_("{key} holds a line break or a control character").format(key=key), kind="bad_remote")
    config = own_config()
    try:
        config.parent.mkdir(parents=True, exist_ok=True)
        with Lock(config.with_name(".rclone.conf.lock")).held():
            parser = _read(config)
            if config.exists() and config.stat().st_size and not parser.sections():
                raise FtuiError(
                    _("our rclone.conf cannot be understood; it is left as it is"),
                    where=str(config),
                    fix=_("repair it, or move it away"),
                    kind="rclone_conf",
                )
            if parser.has_section(name):
                parser.remove_section(name)
            parser.add_section(name)
            for key, value in values.items():
                parser.set(name, key, value)
            lines = []
            for section in parser.sections():
                lines += [f"[{section}]", *(f"{key} = {value}" for key, value in parser.items(section)), ""]
            write_atomic(config, "\n".join(lines).encode(), mode=0o600)
    except OSError as error:
        raise FtuiError(
            _("rclone.conf cannot be written: {reason}").format(reason=error.strerror or error), where=str(config)
        ) from None
    return config


def s3_values(
    provider: str,
    *,
    access_key: str | None,
    secret_key: str | None,
    session_token: str | None = None,
    endpoint: str | None = None,
    region: str | None = None,
    account: str | None = None,
) -> dict[str, str]:
    """The lines of rclone.conf for an S3 provider. Without keys the environment (AWS_…, a role) is asked at each start.

    Raises:
        UsageError: the provider is not known, or something that it needs is not given.
    """
    known = PROVIDERS.get(provider)
    if known is None:
        raise UsageError(
            _("'{name}' is no provider that is known").format(name=provider[:40]),
            fix=_("known: {names}; `other` takes any --endpoint").format(names=", ".join(PROVIDERS)),
            kind="bad_provider",
        )
    if (access_key is None) != (secret_key is None):
        raise UsageError(_("an access key needs its secret key"), fix=_("give both, or neither"), kind="bad_remote")
    region = region or known.region
    template = endpoint or known.endpoint
    if template and "{account}" in template and not account:
        raise UsageError(_("this provider needs the account"), fix=_("give --account or --endpoint"), kind="bad_remote")
    if template is None and provider != "aws":
        raise UsageError(_("this provider needs an endpoint"), fix=_("give --endpoint https://…"), kind="bad_remote")
    values = {"type": "s3", "provider": known.rclone}
    if access_key and secret_key:
        values |= {"access_key_id": access_key, "secret_access_key": secret_key}
        if session_token:
            values["session_token"] = session_token
    else:
        values["env_auth"] = "true"
    if region:
        values["region"] = region
    if template:
        values["endpoint"] = template.format(account=account, region=region)
    return values | dict(known.options)


@dataclass(frozen=True)
class Step:
    """One step of the preflight."""

    name: str  # list, write, read, delete
    ok: bool
    detail: str = ""


@dataclass(frozen=True)
class Preflight:
    """What a remote can do. `etag`: what its ETags are worth (`parts`, `plain`, `opaque`; `none`: it has none)."""

    remote: str
    ok: bool
    steps: list[Step]
    etag: str | None = None
    cause: str | None = None
    fix: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def preflight(daemon: Daemon, path: str) -> Preflight:
    """List, write an object in two parts, read it back, delete it.

    Args:
        path: a folder of the remote (`NAME:bucket/folder`).
    """
    from engine.backup.remote import Remote

    steps: list[Step] = []
    etag = None
    name, here = f"{PROBE}-{secrets.token_hex(4)}", "list"
    try:
        remote = Remote(daemon, path)
        try:
            remote.daemon.call(
                "operations/list", fs=remote.fs(), remote="", opt={"noModTime": True, "noMimeType": True}
            )
            steps.append(Step("list", True))
        except RcloneError as error:
            if error.cause != "missing":
                raise
            steps.append(Step("list", True, _("nothing there yet")))
        with tempfile.TemporaryDirectory(prefix="ftui-") as folder:
            source = Path(folder) / name
            source.write_bytes(os.urandom(PROBE_SIZE))
            here = "write"
            _put_in_parts(remote, source, name)
            steps.append(Step("write", True))
            here = "read"
            found = remote.downloaded_sha256(name)
            hashes = hashing.hash_file(source)
            if found != hashes.sha256:
                raise RcloneError(_("what was read back is not what was written"), cause="other")
            etag = _form(remote, name, source)
            steps.append(Step("read", True))
        here = "delete"
        remote.delete(name)
        steps.append(Step("delete", True))
    except RcloneError as error:
        steps.append(Step(here, False, error.text))
        return Preflight(path, False, steps, etag, error.cause, error.fix)
    return Preflight(path, True, steps, etag)


def _put_in_parts(remote: Any, source: Path, name: str) -> None:
    fs = remote.fs()
    if remote.is_s3:
        options = "chunk_size=5Mi,upload_cutoff=5Mi,disable_checksum=true,no_check_bucket=true"
        fs = f"{remote.name},{options}:{remote.path.partition(':')[2].rstrip('/')}/"
    remote.job("operations/copyfile", srcFs=str(source.parent), srcRemote=source.name, dstFs=fs, dstRemote=name)


def _form(remote: Any, name: str, source: Path) -> str:
    import hashlib

    seen = remote.see(name)
    if seen is None or seen.value is None:
        return "none"
    data = source.read_bytes()
    part = 5 * hashing.MIB
    digests = [
        hashlib.md5(data[start : start + part], usedforsecurity=False).digest() for start in range(0, len(data), part)
    ]
    whole = hashlib.md5(data, usedforsecurity=False).hexdigest()
    forms = {hashing.multipart_etag(digests): "parts", whole: "plain", hashlib.sha256(data).hexdigest(): "sha256"}
    return forms.get(seen.value.lower(), "opaque")
