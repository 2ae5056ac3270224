"""Where the model comes from, and its tokenizer: known before anything of torch or PEFT is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.errors import UsageError
from engine.recipe import hub, paths
from engine.text import _
from engine.train import builtin
from engine.train.job import Job
from engine.train.ranks import Ranks

HUB_TIMEOUT_S = 15.0


def locate(job: Job, ranks: Ranks) -> str:
    """The model's folder or hub id; a built-in one is made when it is not there.

    Raises:
        UsageError: the recipe names no model, or a folder that is none.
    """
    name = job.get("model_name_or_path")
    if not name:
        raise UsageError(
            _("the recipe names no model"), where="model_name_or_path", fix=_("set model_name_or_path"), kind="no_model"
        )
    if str(name).startswith(builtin.PREFIX):
        return str(ranks.by_first(lambda: builtin.model_path(name, job.cache)))
    path = Path(name)
    if path.is_absolute() or path.exists():
        if not (path / "config.json").is_file():
            raise UsageError(
                _("there is no model in this folder: config.json is missing"),
                where=str(path),
                fix=_("set model_name_or_path to a folder with config.json, weights and tokenizer"),
                kind="no_model",
            )
        return str(path)
    ranks.by_first(lambda: _reachable(str(name), job.get("model_revision")))
    return str(name)


def to_come(job: Job) -> str | None:
    """What `locate` and the loading will take long for: "builtin" has to be made, "download" to be fetched."""
    name = str(job.get("model_name_or_path") or "")
    if name.startswith(builtin.PREFIX):
        return None if builtin.is_made(name, job.cache) else "builtin"
    if paths.source("model_name_or_path", name) != "hub" or Path(name).exists():
        return None
    return None if next(hub.snapshots(name), None) else "download"


def _reachable(name: str, revision: str | None) -> None:
    """Ask for a model of the hub once, where it is not in the cache: the libraries try for a minute, without a word.

    Raises:
        UsageError: it cannot be had.
    """
    if next(hub.snapshots(name, None if revision in (None, "main") else revision), None) is not None:
        return
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    fix = _("give the model's folder, or download it where the hub can be reached: `ftui model get {name}`")
    if hub.offline():
        reason = _("HF_HUB_OFFLINE is set, and it is not in the cache")
    else:
        try:
            HfApi().model_info(name, revision=revision, timeout=HUB_TIMEOUT_S)
            return
        except GatedRepoError:
            reason, fix = _("it wants your consent"), _("accept its license on the hub, then set HF_TOKEN")
        except RepositoryNotFoundError:
            reason, fix = _("there is no such model, or it is private"), _("check the name; for a private one HF_TOKEN")
        except RevisionNotFoundError:
            reason, fix = _("it has no such revision"), _("check model_revision")
        except Exception as error:  # noqa: BLE001 - of whichever HTTP library the hub's client uses
            reason = first_line(error)
    raise UsageError(
        _("{name} is no folder, and cannot be had from the hub: {reason}").format(name=name, reason=reason),
        where="model_name_or_path",
        fix=fix.format(name=name),
        kind="no_model",
    )


def hub_options(job: Job) -> dict[str, Any]:
    """Where hub files come from; both are harmless for a folder."""
    options: dict[str, Any] = {"trust_remote_code": bool(job.get("trust_remote_code", False))}
    if revision := job.get("model_revision"):
        options["revision"] = revision
    return options


def load_tokenizer(job: Job, path: str) -> Any:
    """The tokenizer with the recipe's chat template.

    Raises:
        UsageError: there is none beside the model.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(path, **hub_options(job))
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise UsageError(
            _("the model has no usable tokenizer: {reason}").format(reason=first_line(error)),
            where=path,
            fix=_("put tokenizer.json and tokenizer_config.json of the base model into the folder"),
            kind="no_tokenizer",
        ) from error
    if template := job.get("chat_template_path"):
        tokenizer.chat_template = _template(str(template))
    if end := job.get("eos_token"):
        tokenizer.eos_token = end
    return tokenizer


def _template(path: str) -> str:
    """The text of a chat template: a .jinja file, or that of the tokenizer in a folder.

    Only the text is taken: tokens that it uses and this tokenizer lacks are spelled in pieces.
    """
    from transformers import AutoTokenizer

    try:
        if path.endswith((".jinja", ".j2")):
            return Path(path).read_text(encoding="utf-8")
        if template := AutoTokenizer.from_pretrained(path).chat_template:
            return str(template)
        reason = _("the tokenizer there has none")
    except (OSError, ValueError, KeyError) as error:
        reason = first_line(error)
    raise UsageError(
        _("there is no chat template to be read: {reason}").format(reason=reason),
        where=path,
        fix=_("set chat_template_path to a .jinja file or to a tokenizer's folder"),
        kind="no_chat_template",
    )


def first_line(error: BaseException) -> str:
    """The first line of an error's text: libraries like to append their whole manual."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:300]
