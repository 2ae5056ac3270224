"""Asks the hub about a model: its files with sizes and hashes at one commit. Errors say what to do."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from engine.errors import FtuiError, UsageError
from engine.text import _

# What training and serving read; the rest of a repository (other formats, pictures, the maker's own files) stays there.
WANTED = (
    "*.json",
    "*.jinja",
    "*.model",
    "*.txt",
    "*.py",
    "*.tiktoken",
    "LICENSE*",
    "NOTICE*",
    "README.md",
    "*.safetensors",
)
NOT_WANTED = ("original/*", "onnx/*", "openvino/*", "coreml/*", "gguf/*", "consolidated*", "*.safetensors.tmp", ".*")
OLD_WEIGHTS = ("pytorch_model*.bin", "pytorch_model.bin.index.json")


@dataclass(frozen=True)
class File:
    """A file of a model: where, how large (bytes), and its hash: sha256 of large files, git's sha1 of small ones."""

    path: str
    size: int
    sha256: str | None
    blob: str | None


@dataclass(frozen=True)
class Model:
    """A model of the hub at one commit."""

    name: str
    revision: str
    commit: str
    files: tuple[File, ...]
    license: str | None
    gated: bool

    @property
    def bytes(self) -> int:
        """What there is to fetch."""
        return sum(file.size for file in self.files)


def ask(name: str, revision: str = "main", timeout: float = 20.0) -> Model:
    """The model's files at a revision.

    Args:
        name: `owner/name`.
        revision: branch, tag or commit.
        timeout: seconds to wait for the hub.

    Raises:
        UsageError: no such model or revision.
        FtuiError: gated, no access, or the hub does not answer.
    """
    from huggingface_hub import HfApi

    with explained(name, revision):
        info = HfApi().model_info(name, revision=revision, files_metadata=True, timeout=timeout)
    files = tuple(
        File(item.rfilename, int(item.size or 0), item.lfs.sha256 if item.lfs else None, item.blob_id)
        for item in info.siblings or ()
    )
    card = info.card_data
    license_name = str(card.get("license") or "") if card is not None else ""
    return Model(name, revision, str(info.sha), wanted(files), license_name or None, bool(info.gated))


def wanted(files: tuple[File, ...]) -> tuple[File, ...]:
    """The files to fetch: safetensors where there are any, else the older weights."""
    patterns: tuple[str, ...] = WANTED
    if not any(file.path.endswith(".safetensors") and not _any(file.path, NOT_WANTED) for file in files):
        patterns = (*WANTED, *OLD_WEIGHTS)
    return tuple(file for file in files if _any(file.path, patterns) and not _any(file.path, NOT_WANTED))


def _any(path: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)


@contextmanager
def explained(name: str, revision: str) -> Iterator[None]:
    """Turn what huggingface_hub raises into one clear error."""
    from huggingface_hub import constants, errors

    where = f"{constants.ENDPOINT}/{name}"
    try:
        yield
    except errors.GatedRepoError as error:
        raise FtuiError(
            _("{name} is gated: its makers ask you to accept a license first").format(name=name),
            where=where,
            fix=_("accept it at {where} in a browser, then `hf auth login` (or set HF_TOKEN) here").format(where=where),
            kind="gated",
        ) from error
    except errors.RevisionNotFoundError as error:
        raise UsageError(
            _("{name} has no revision {revision}").format(name=name, revision=revision),
            where=where,
            fix=_("give a branch, tag or commit that is listed there"),
            kind="no_such_revision",
        ) from error
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        raise UsageError(
            _("the hub has no model {name}, or it is private").format(name=name),
            where=where,
            fix=_("check the name; for a private model log in first: `hf auth login`"),
            kind="no_such_model",
        ) from error
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
        raise _unreachable(name, where, str(error)) from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else None
        if status in (401, 403):
            raise FtuiError(
                _("the hub refuses access to {name} ({status})").format(name=name, status=status),
                where=where,
                fix=_("log in with a token that may read it: `hf auth login`, or set HF_TOKEN"),
                kind="no_access",
            ) from error
        raise _unreachable(name, where, _("it answers {status}").format(status=status)) from error
    except (OSError, RuntimeError) as error:
        raise _unreachable(name, where, str(error) or type(error).__name__) from error
    except Exception as error:
        if not type(error).__module__.startswith(("httpx", "httpcore", "hf_xet")):
            raise
        raise _unreachable(name, where, str(error) or type(error).__name__) from error


def _unreachable(name: str, where: str, reason: str) -> FtuiError:
    first = reason.strip().splitlines()[0][:200] if reason.strip() else ""
    return FtuiError(
        _("the hub cannot be asked about {name}: {reason}").format(name=name, reason=first),
        where=where,
        fix=_("check the network (HF_HUB_OFFLINE must not be set), or set HF_ENDPOINT to a mirror"),
        kind="hub_unreachable",
    )
