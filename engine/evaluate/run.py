"""An evaluation from beginning to end: rows, leaks, the models, scores, gates, the report."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.errors import UsageError
from engine.evaluate import child, gate, judge, leaks, metrics, rows, scoring, tasks, user_function
from engine.evaluate.judge import Endpoint
from engine.evaluate.report import words
from engine.evaluate.rows import Row
from engine.evaluate.scoring import ROLES, Scores
from engine.evaluate.store import digest, fingerprint
from engine.evaluate.subject import Subject
from engine.files import read_json
from engine.findings import Finding
from engine.recipe import gates as grammar
from engine.text import _, duration, number
from engine.workspace import Workspace

GENERATION_FORMAT = 1  # changes when the same settings would give other answers
LIMIT = 500
SEED = 42


@dataclass
class Wishes:
    """What to evaluate and how; None takes what the recipe says."""

    gates: list[str] = field(default_factory=list)
    data: str | None = None
    metrics: list[str] | None = None
    extract: str | None = None
    max_new_tokens: int | None = None
    limit: int | None = LIMIT
    answers: bool = True
    regression: bool = True
    judge: Endpoint | None = None
    lm_eval: list[str] = field(default_factory=list)
    out: Path | None = None


@dataclass
class Evaluation:
    """What came of it: everything that the report shows."""

    subject: Subject
    document: dict[str, Any]
    rows: list[dict[str, Any]]
    folder: Path

    @property
    def code(self) -> int:
        """The command's exit code: 4 where a gate says no."""
        return 4 if self.document["passed"] is False else 0


class Evaluator:
    """One evaluation.

    Args:
        workspace: for the base's store, which all runs share.
        subject: what is evaluated.
        wishes: how.
        say: takes progress for people.
    """

    def __init__(
        self, workspace: Workspace, subject: Subject, wishes: Wishes, say: Callable[[str], None] = lambda text: None
    ) -> None:
        self.workspace, self.subject, self.wishes, self.say = workspace, subject, wishes, say
        recipe = subject.recipe
        self.metrics: list[str] = wishes.metrics or recipe.get("eval_metrics") or list(metrics.DEFAULT)
        self.extract: str | None = wishes.extract or recipe.get("eval_extract")
        self.max_new_tokens = int(wishes.max_new_tokens or recipe.get("eval_max_new_tokens") or 256)
        # The user's functions: those of the command line from here, those of the recipe from its folder.
        source = subject.run.read_resolved().get("source") if subject.run is not None else None
        self.folder = Path.cwd() if wishes.metrics or not source else Path(str(source)).parent
        texts = [*(recipe.get("gates") or []), *wishes.gates]
        self.gates = gate.read(list(dict.fromkeys(texts)), self.metrics)
        self.findings: list[Finding] = []
        if wishes.judge is not None:
            wishes.judge.check()
        for name in self.metrics:
            if grammar.FUNCTION.match(name):
                user_function.locate(name, self.folder)
            elif name not in grammar.SCORES:
                names = ", ".join((*grammar.SCORES, "file.py:function"))
                raise UsageError(
                    _("there is no metric '{name}'").format(name=name), fix=_("use: {names}").format(names=names)
                )

    def run(self) -> Evaluation:
        """Evaluate, and write the report.

        Raises:
            FtuiError: nothing could be evaluated. What was computed until then is kept.
        """
        begin = time.monotonic()
        asked, general, leaked = self._rows()
        folder = self._place()
        folder.mkdir(parents=True, exist_ok=True)
        results = self._ask([*asked, *general])
        scores = Scores()
        self._problems([*asked, *general], results)
        scoring.losses(scores, results, int(self.subject.recipe.get("per_device_eval_batch_size") or 8))
        of = asked[0].set if asked else "task"
        if asked:
            scoring.task(scores, of, asked, results, self.metrics, self.extract)
            if of != "held_out":  # of the held-out rows it is nearly eval_loss
                scoring.reference_loss(scores, "answer_loss", of, asked, results)
            for name in dict.fromkeys([*self.metrics, *(m for row in asked for m in row.metrics)]):
                if grammar.FUNCTION.match(name):
                    wanted = [row for row in asked if name in (row.metrics or self.metrics)]
                    user_function.score(scores, of, wanted, results, name, self.folder)
        judged = None
        if asked and self.wishes.judge is not None:
            judged = judge.run(self.wishes.judge, self._own_cache(), scores, asked, results, self.say)
        harness = None
        if self.wishes.lm_eval:
            harness = tasks.run(self.subject, self.wishes.lm_eval, self.wishes.limit, scores.findings, self.say)
        groups = scoring.regression(scores, general, results)
        if not scores.metrics:
            raise UsageError(
                _("there is nothing to evaluate on: no held-out rows, no set of your own, no general prompts"),
                where=str(self.subject.folder),
                fix=_("give rows with --data FILE"),
                kind="empty_set",
            )
        document = self._document(scores, results, groups, leaked, time.monotonic() - begin)
        document["judge"], document["harness"] = judged, harness
        said = _row_documents([*asked, *general], results, scores)
        evaluation = Evaluation(self.subject, document, said, folder)
        from engine.evaluate import report

        report.write(evaluation)
        return evaluation

    def _rows(self) -> tuple[list[Row], list[Row], dict[str, Any]]:
        run, wishes = self.subject.run, self.wishes
        name = wishes.data or self.subject.recipe.get("eval_task_path")
        file = run.data / "held_out.jsonl" if run is not None else None
        asked = rows.task(str(name)) if name else rows.held_out(file) if file is not None else []
        leaked: dict[str, Any] = {"checked": False, "same": 0}
        place = Path(str(name)) if name else file
        if run is not None and asked and place is not None and place.is_file():
            self.say(_("comparing the rows with those that were trained on"))
            found = leaks.check(run, place, held_out=not name)
            leaked = found.to_json()
            self.findings += found.findings
            kept = [row for row in asked if row.line not in found.same]
            if asked and not kept:
                raise UsageError(
                    _("every row of the evaluation set was trained on: it says nothing about new ones"),
                    where=str(place),
                    fix=_("give rows that are not in the training data with --data FILE"),
                    kind="trained_on",
                )
            asked = kept
        total = len(asked)
        asked = rows.sample(asked, wishes.limit, SEED)
        if len(asked) < total:
            detail = _("{n} of {total} rows are asked, the same ones each time").format(
                n=number(len(asked)), total=number(total)
            )
            self.findings.append(Finding("sampled", "note", detail, _("--limit N asks more")))
        if not wishes.answers:
            return [], [], leaked
        return asked, rows.regression() if wishes.regression else [], leaked

    def _place(self) -> Path:
        if self.wishes.out is not None:
            return self.wishes.out
        if self.subject.run is not None:
            return gate.folder_of(self.subject.run) / self.subject.label
        return self.workspace.root / "evaluation" / self.subject.label

    def _own_cache(self) -> Path:
        """Where what this model said is kept: with its run, where it has one."""
        run = self.subject.run
        return (run.path / "cache" if run is not None else self.workspace.cache_dir) / "evaluate"

    def _stores(self) -> dict[str, dict[str, Any]]:
        """The roles with their stores; the base's is shared by all runs of the workspace."""
        roles = self.subject.roles()
        recipe = self.subject.recipe
        loading = [
            recipe.get(key)
            for key in ("dtype", "load_in_4bit", "load_in_8bit", "bnb_4bit_quant_type", "attn_implementation", "bf16")
        ]
        shared, own = self.workspace.cache_dir / "evaluate", self._own_cache()
        prints: dict[str, str] = {}
        for entry in roles.values():
            for place in (entry["path"], entry["adapter"]):
                if place and place not in prints:
                    prints[place] = fingerprint(Path(place))
        for role, entry in roles.items():
            key = digest(prints[entry["path"]], prints.get(entry["adapter"] or ""), loading)
            entry["store"] = str((shared if role == "base" else own) / f"{key}.jsonl")
        return roles

    def _ask(self, asked: list[Row]) -> dict[str, Any]:
        run = self.subject.run
        has_split = run is not None and (run.data / "eval").is_dir()
        job = {
            "roles": self._stores(),
            "recipe": self.subject.recipe,
            "run": str(run.path if run is not None else self.subject.folder),
            "tokenizer": str(self.subject.tokenizer),
            "max_new_tokens": self.max_new_tokens,
            "rows": [row.for_child() for row in asked],
            "held_out": has_split,
            "generate": True,
            "generation_format": GENERATION_FORMAT,
        }
        # The same question as before needs no process at all: not even the tokens are made again.
        told = digest(job, _stamp(run.data / "data.json") if run is not None else None)
        kept = self._own_cache() / f"results-{told}.json"
        if isinstance(known := read_json(kept), dict):
            return known
        job["results"] = str(kept)
        kept.parent.mkdir(parents=True, exist_ok=True)
        first: tuple[float, int] | None = None
        for event in child.run(job):
            if event["event"] == "phase" and event["doing"] == "model":
                self.say(_("loading the {role} model").format(role=words.role(event["role"])))
            elif event["event"] == "progress":
                now = time.monotonic()
                first = first or (now, event["done"])
                self.say(_progress(event, now - first[0], event["done"] - first[1]))
        results = read_json(kept)
        if not isinstance(results, dict):
            raise UsageError(_("the evaluation left no results"), where=str(kept))
        return results

    def _problems(self, asked: list[Row], results: dict[str, Any]) -> None:
        """Rows that could not be asked."""
        found: dict[str, list[Row]] = {}
        for row in asked:
            if problem := results["rows"].get(row.id, {}).get("problem"):
                found.setdefault("too_long" if "tokens" in problem else "not_asked", []).append(row)
        for kind, members in found.items():
            detail = _("{n} rows are not asked, the first because: {reason}").format(
                n=len(members), reason=results["rows"][members[0].id]["problem"]
            )
            fix = _("shorten them, or lower --max-new-tokens") if kind == "too_long" else _("correct the rows")
            self.findings.append(Finding(kind, "error", detail, fix, [row.line for row in members][:20], len(members)))

    def _document(
        self, scores: Scores, results: dict[str, Any], groups: list[dict[str, Any]], leaked: Any, seconds: float
    ) -> dict[str, Any]:
        subject = self.subject
        judged = [gate.judge(item, scores) for item in self.gates]
        regression = scores.get("regression")
        self.findings += scores.findings
        return {
            "format": 1,
            "time": time.time(),
            "run": subject.run.name if subject.run is not None else None,
            "step": subject.step,
            "label": subject.label,
            "model": {"tuned": str(subject.folder), "base": str(subject.base), "adapter": subject.is_adapter},
            "settings": {
                "max_new_tokens": self.max_new_tokens, "decoding": "greedy", "metrics": self.metrics,
                "extract": self.extract, "dtype": subject.recipe.get("dtype"), "stop": results["stop"],
            },
            "inputs_sha256": results["inputs_sha256"],
            "leaks": leaked,
            "base": {metric.name: metric.base.value for metric in scores.metrics},
            "tuned": {metric.name: metric.tuned.value for metric in scores.metrics},
            "delta": {metric.name: metric.delta.to_json() for metric in scores.metrics},
            "metrics": [metric.to_json() for metric in scores.metrics],
            "regression": groups,
            "forgetting": 0.0 - regression.delta.value if regression is not None else None,
            "gates": judged,
            "passed": all(item["passed"] for item in judged) if judged else None,
            "findings": [finding.to_json() for finding in self.findings],
            "seconds": round(seconds, 2),
        }  # fmt: skip


def _stamp(path: Path) -> list[int] | None:
    """Changes when a file does."""
    try:
        info = path.stat()
    except OSError:
        return None
    return [info.st_size, info.st_mtime_ns]


def _progress(event: dict[str, Any], seconds: float, done: int) -> str:
    share = event["done"] / max(1, event["total"])
    what = _("losses") if event["what"] == "loss" else _("answers")
    text = _("{role} model, {what}: {share} %").format(
        role=words.role(event["role"]), what=what, share=number(100 * share)
    )
    if done < 0.02 * event["total"] or seconds < 1:
        return text
    left = seconds * (event["total"] - event["done"]) / done
    return _("{text}, {left} left").format(text=text, left=duration(left))


def _row_documents(asked: list[Row], results: dict[str, Any], scores: Scores) -> list[dict[str, Any]]:
    """Each row with what both models said to it, as rows.jsonl keeps it."""
    found = []
    for row in asked:
        told = results["rows"].get(row.id, {})
        said = {role: results["roles"][role]["rows"].get(row.id, {}).get("answer") for role in ROLES}
        found.append(
            {
                "id": row.id, "set": row.set, "line": row.line, "category": row.category, "language": row.language,
                "prompt": row.prompt, "messages": row.messages, "reference": row.reference, "expected": row.expected,
                "problem": told.get("problem"), "input_sha256": told.get("input_sha256"),
                **{role: said[role]["text"] if said[role] else None for role in ROLES},
                "ended": {role: said[role]["ended"] if said[role] else None for role in ROLES},
                "scores": scores.rows.get(row.id, {}),
            }
        )  # fmt: skip
    return found
