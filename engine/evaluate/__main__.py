"""`python -m engine.evaluate`: asks the models. The job comes as JSON on stdin, events go out as JSON lines.

Each result goes to its model's store at once; a second process with the same job goes on where this one ended.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from pathlib import Path
from typing import Any, TextIO

EVERY = 0.5  # seconds between words about progress
STEP_COST = 20  # a token that is made costs about as much as this many that are read, a batch at a time


def main() -> int:
    """Do the job; every outcome is an event."""
    out = sys.stdout
    sys.stdout = sys.stderr  # a library that prints must not spoil the stream of events
    job = json.loads(sys.stdin.read())
    from engine.errors import FtuiError

    try:
        Evaluation(job, out).run()
    except FtuiError as error:
        _tell(out, event="error", **error.to_json())
        return error.exit_code
    except Exception as error:  # noqa: BLE001 - the parent must be able to say what it was
        traceback.print_exc()
        memory = type(error).__name__ == "OutOfMemoryError" or isinstance(error, MemoryError)
        text = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
        _tell(out, event="error", kind="out_of_memory" if memory else "failed", message=text, exit_code=1)
        return 1
    return 0


def _tell(out: TextIO, **event: Any) -> None:
    out.write(json.dumps(event) + "\n")
    out.flush()


class Evaluation:
    """One job: tokens, then for each model the losses and the answers that its store lacks."""

    def __init__(self, job: dict[str, Any], out: TextIO) -> None:
        from engine.evaluate.store import Store

        self.job = job
        self.out = out
        self.stores = {role: Store(Path(entry["store"])) for role, entry in job["roles"].items()}
        self.done = self.total = 0
        self.said = 0.0

    def run(self) -> None:
        """Do it, and write what each row got to `results`."""
        from engine.evaluate import inputs, models
        from engine.evaluate.store import digest
        from engine.train.source import load_tokenizer

        job = self.job
        _tell(self.out, event="phase", doing="libraries")
        work = models.make_job(job["recipe"], job["run"])
        tokenizer = load_tokenizer(work, job["tokenizer"])
        folders = [entry["path"] for entry in job["roles"].values()]
        contexts = [length for folder in folders if (length := inputs.context_of(folder))]
        new = job["max_new_tokens"]
        self.stop = inputs.stop_tokens(folders, tokenizer)
        self.pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else (self.stop or [0])[0]
        self.rows = inputs.encode(tokenizer, job["rows"], min(contexts, default=None), new)
        held_out = _held_out(work) if job["held_out"] else []
        self.scored = [row.scored for row in self.rows if row.scored] + [pair for _row, pair in held_out]
        settings = digest("greedy", new, self.stop, job["generation_format"])
        for row in self.rows:
            if row.prompt is not None and job["generate"]:
                row.keys["answer"] = digest("answer", settings, row.prompt)
            if row.scored:
                row.keys["loss"] = digest("loss", row.scored)
        pairs = [(digest("loss", pair), pair) for _row, pair in held_out]
        self._count(pairs)
        loader = models.Models(work, job["roles"], len(tokenizer))
        for role in job["roles"]:
            self._ask(role, loader, tokenizer, pairs)
        self._write([row for row, _pair in held_out], [key for key, _pair in pairs])

    def _count(self, pairs: list[Any]) -> None:
        """What is to be computed: progress speaks of that, not of what was kept."""
        for store in self.stores.values():
            for row in self.rows:
                if row.prompt is not None and row.keys.get("answer", "") not in store.results and "answer" in row.keys:
                    self.total += self._answer_cost(row.prompt)
                if row.scored and row.keys["loss"] not in store.results:
                    self.total += len(row.scored[0])
            self.total += sum(len(pair[0]) for key, pair in pairs if key not in store.results)

    def _answer_cost(self, prompt: list[int]) -> int:
        return len(prompt) + STEP_COST * int(self.job["max_new_tokens"])

    def _ask(self, role: str, loader: Any, tokenizer: Any, pairs: list[Any]) -> None:
        from engine.evaluate import generate, loss

        store = self.stores[role]
        wanted = {row.keys["loss"]: row.scored for row in self.rows if row.scored} | dict(pairs)
        losses = [(key, pair) for key, pair in wanted.items() if key not in store.results]
        asked = {row.keys["answer"]: row.prompt for row in self.rows if row.prompt is not None and "answer" in row.keys}
        prompts = [(key, prompt) for key, prompt in asked.items() if key not in store.results]
        if not losses and not prompts:
            return
        _tell(self.out, event="phase", doing="model", role=role)
        with loader.use(role) as model:

            def scored(number: int, result: Any) -> None:
                key, pair = losses[number]
                store.add({"key": key, "nll": result.nll, "tokens": result.tokens, "correct": result.correct})
                self._progress(role, "loss", len(pair[0]))

            def answered(number: int, tokens: list[int]) -> None:
                key, prompt = prompts[number]
                text = tokenizer.decode(tokens, skip_special_tokens=True)
                ended = len(tokens) < self.job["max_new_tokens"]
                store.add({"key": key, "text": text, "tokens": len(tokens), "ended": ended, "ids": tokens})
                self._progress(role, "answers", self._answer_cost(prompt))

            loss.score(model, [pair for _key, pair in losses], loader.autocast, scored)
            generate.answer(
                model,
                [prompt for _key, prompt in prompts],
                max_new_tokens=self.job["max_new_tokens"],
                stop=self.stop,
                pad=self.pad,
                done=answered,
            )
        store.close()

    def _progress(self, role: str, what: str, cost: int) -> None:
        self.done += cost
        if time.monotonic() - self.said >= EVERY:
            self.said = time.monotonic()
            _tell(self.out, event="progress", role=role, what=what, done=self.done, total=self.total)

    def _write(self, rows_of: list[int], keys: list[str]) -> None:
        from engine.evaluate.store import digest
        from engine.files import write_json

        document: dict[str, Any] = {
            "rows": {row.id: {"problem": row.problem, "input_sha256": row.sha256} for row in self.rows},
            "inputs_sha256": digest([row.sha256 for row in self.rows]),
            "stop": self.stop,
            "roles": {},
        }
        for role, store in self.stores.items():
            kept = store.results
            document["roles"][role] = {
                "rows": {row.id: {kind: kept.get(key) for kind, key in row.keys.items()} for row in self.rows},
                "held_out": [
                    {"row": row, **{k: kept[key][k] for k in ("nll", "tokens", "correct")}}
                    for row, key in zip(rows_of, keys, strict=True)
                ],
            }
        write_json(Path(self.job["results"]), document, durable=False)
        _tell(self.out, event="done")


def _held_out(work: Any) -> list[tuple[int, tuple[list[int], list[int]]]]:
    """The run's own rows for evaluation with their masks, as the trainer saw them; packed ones taken apart again."""
    from engine.train import data

    _train, evaluation = data.load(work)
    found = []
    for number, row in enumerate(evaluation if evaluation is not None else ()):
        if "input_ids" not in row:  # preferences have no one right answer
            return []
        ids, at = list(row["input_ids"]), 0
        labels = list(row["labels"]) if row.get("labels") is not None else list(ids)
        for length in row.get("seq_lengths") or [len(ids)]:
            part = (ids[at : at + length], labels[at : at + length])
            at += length
            found.append((number, part))
    return found


if __name__ == "__main__":
    raise SystemExit(main())
