"""One checkpoint, looked at closely: structure first, then one pass over its bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.checkpoint import headers, layout, manifest, reading, shards, torchfiles, tree
from engine.checkpoint.problems import Problems
from engine.checkpoint.tensors import Checksum, Numbers, Tensor
from engine.text import _

JSON_LIMIT = 64 * 1024 * 1024  # a tokenizer takes some ten megabytes
_TORCH = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle")
_MUST_HAVE_BYTES = (".json", ".safetensors", ".distcp", "/.metadata", *_TORCH)
INCOMPLETE = "checkpoint-is-incomplete.txt"  # transformers puts it there, and does not look at it when it resumes
_CONFIGS = ("config.json", "adapter_config.json", "trainer_state.json")


class Inspection:
    """The state of one checkpoint folder. Nothing in it is written, renamed or run."""

    def __init__(self, folder: Path, step: int | None, *, is_ours: bool = False) -> None:
        self.folder = folder
        self.step = step
        self.is_ours = is_ours
        self.problems = Problems()
        self.files: dict[str, tree.File] = {}
        self.json: dict[str, Any] = {}
        self.tensors: dict[str, list[Tensor] | None] = {}  # of each file with weights; None: it cannot be read
        self.attempt = 0
        self.sealed = False
        self.only_weights = False  # all that retention kept of it
        self._hashes: dict[str, str] = {}
        self._checksums: dict[str, list[Checksum]] = {}
        self._others: dict[str, list[Tensor]] = {}  # of optimizer and scheduler
        self._scheduled: Any = None  # the step that the schedule of the learning rate is at

    @property
    def bytes(self) -> int:
        """The size of all files together."""
        return sum(file.size for file in self.files.values())

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each weight."""
        return {tensor.name: tensor.shape for found in self.tensors.values() for tensor in found or ()}

    def look(self) -> None:
        """All that can be seen without reading the numbers."""
        self.files = tree.files(self.folder, self.problems)
        if not self.files:
            self.problems.add("missing_file", "error", _("the folder is empty"))
            return
        if INCOMPLETE in self.files:
            self.problems.add(
                "incomplete_save", "error", _("{file} says that the save never ended").format(file=INCOMPLETE)
            )
        for name, file in self.files.items():
            self._look_at(name, file)
        world_size = self._read_manifest()
        if self.only_weights:
            self.problems.add("weights_only", "note", _("retention kept only its weights: nothing resumes from it"))
            layout.check_weights(self.files, self.problems)
        else:
            layout.check(self.files, world_size, self.problems)
        self._look_at_shards(shards.check_dcp(self.files, self.problems))
        for name, value in self.json.items():
            if name.endswith(".index.json"):
                shards.check_index(name, value, self.files, self.tensors, self.problems)
        for name, found in self.tensors.items():
            shards.check_shapes(name, found or [], self.json, self.problems)
        self._check_step()

    def read(self, progress: Callable[[int], None] | None = None) -> None:
        """Read every file that says something: hashes where a manifest has them, checksums and numbers elsewhere."""
        jobs = {}
        numbers: list[tuple[str, Numbers]] = []
        for name, file in self.files.items():
            watches: list[Any] = []
            for tensor in [*(self.tensors.get(name) or ()), *self._others.get(name, ())]:
                is_b = ".lora_B." in f"{tensor.name}."
                if tensor.size and (Numbers.can(tensor.dtype) or is_b):
                    watch = Numbers(tensor, wants_nonzero=is_b)
                    numbers.append((name, watch))
                    watches.append(watch)
            if name not in self._hashes:  # a hash says all that a checksum would
                watches += self._checksums.get(name, ())
            if watches or name in self._hashes:
                jobs[name] = reading.Job(file.path, file.size, name in self._hashes, watches)
        reading.read_all(jobs.values(), progress)
        self._judge_jobs(jobs)
        self._judge_numbers(numbers)

    def to_read(self) -> int:
        """About how many bytes `read` will read."""
        wanted = self._hashes.keys() | self.tensors.keys() | self._others.keys() | self._checksums.keys()
        return sum(self.files[name].size for name in wanted if name in self.files)

    def _look_at(self, name: str, file: tree.File) -> None:
        if file.size == 0:
            if f"/{name}".endswith(_MUST_HAVE_BYTES) or name in ("latest", manifest.NAME):
                self.problems.add("zero_byte", "error", _("it has no content"), name)
                self.tensors.setdefault(name, None)
            return
        try:
            if name.endswith(".json") and name != manifest.NAME:
                self._look_at_json(name, file)
            elif name.endswith(".safetensors"):
                self.tensors[name] = headers.read_header(file.path, name, file.size, self.problems)
            elif name.endswith(_TORCH):
                self._look_at_torch(name, file)
        except OSError as error:
            self.problems.add("unreadable", "error", error.strerror or str(error), name)

    def _look_at_json(self, name: str, file: tree.File) -> None:
        if file.size > JSON_LIMIT:
            self.problems.add("bad_json", "warning", _("it is too long to be read"), name)
            return
        try:
            value = json.loads(file.path.read_bytes().decode())  # the trainer reads UTF-8, and nothing else
        except (ValueError, RecursionError) as error:
            self.problems.add("bad_json", "error", _("not JSON: {reason}").format(reason=str(error)[:100]), name)
            return
        if not isinstance(value, dict) and (name.endswith(".index.json") or Path(name).name in _CONFIGS):
            self.problems.add("bad_json", "error", _("not a JSON object"), name)
            return
        self.json[name] = value

    def _look_at_torch(self, name: str, file: tree.File) -> None:
        base = Path(name).name
        shard = "/" in name and base.endswith("_states.pt")
        before = self.problems.broken
        cut = "truncated_shard" if shard else "truncated_zip"
        found = torchfiles.read_torch(file.path, name, file.size, self.problems, cut=cut)
        self._checksums[name] = found.checksums
        if base.startswith(("pytorch_model", "adapter_model")):
            damaged = self.problems.broken and not before and not found.tensors
            self.tensors[name] = None if damaged else found.tensors
        elif base.startswith(("optimizer", "scheduler")) or shard:
            self._others[name] = found.tensors
        if name == "optimizer.pt" and found.root is not None and not _is_optimizer(found.root):
            self.problems.add("wrong_content", "error", _("it holds no state of an optimizer"), name)
        if name == "scheduler.pt" and isinstance(found.root, dict) and "lr_lambdas" in found.root:
            self._scheduled = found.root.get("last_epoch")

    def _look_at_shards(self, spans: shards.Spans) -> None:
        for name, inside in spans.items():
            try:
                found = torchfiles.read_slices(self.files[name].path, inside)
            except OSError as error:
                self.problems.add("unreadable", "error", error.strerror or str(error), name)
                continue
            self._others[name] = found.tensors
            self._checksums[name] = found.checksums

    def _read_manifest(self) -> int | None:
        """Take hashes and sizes from MANIFEST.json where there is one; returns the world size that it tells."""
        file = self.files.get(manifest.NAME)
        if file is None or not file.size:
            return None
        try:
            value = json.loads(file.path.read_bytes()) if file.size <= JSON_LIMIT else None
        except (OSError, ValueError, RecursionError):
            value = None
        listed = value.get("files") if isinstance(value, dict) else None
        if not isinstance(value, dict) or not isinstance(listed, dict):
            self.problems.add("bad_json", "error", _("it is not a manifest"), manifest.NAME)
            return None
        content = manifest.read(self.folder)
        self.sealed = content is not None
        self.only_weights = content is not None and content.tier == manifest.WEIGHTS
        for name, entry in listed.items():
            self._compare(name, entry if isinstance(entry, dict) else {})
        for name in sorted(self.files.keys() - listed.keys() - {manifest.NAME}):
            self.problems.add("unlisted_file", "note", _("it is not in the manifest"), name)
        if (step := value.get("step")) is not None and self.step is not None and step != self.step:
            detail = _("the folder says {folder}, the manifest says {step}")
            detail = detail.format(folder=self.step, step=str(step)[:20])
            self.problems.add("step_mismatch", "error", detail, manifest.NAME)
        attempt, ranks = value.get("attempt"), value.get("world_size")
        self.attempt = attempt if isinstance(attempt, int) else 0
        return ranks if isinstance(ranks, int) and 0 < ranks <= 1_000_000 else None

    def _compare(self, name: str, entry: dict[str, Any]) -> None:
        size, digest = entry.get("size"), entry.get("sha256")
        if not (isinstance(size, int) or isinstance(digest, str)) or not manifest.is_inside(name):
            self.problems.add("bad_json", "error", _("its entry is not one of a manifest"), name)
        elif (file := self.files.get(name)) is None:
            self.problems.add("missing_file", "error", _("{file} is missing").format(file=name), name)
        elif isinstance(size, int) and file.size != size:
            detail = _("{have} bytes, saved with {want}").format(have=file.size, want=size)
            self.problems.add("hash_mismatch", "error", detail, name, subtype="size")
        elif isinstance(digest, str):
            self._hashes[name] = digest.lower()

    def _check_step(self) -> None:
        state = self.json.get("trainer_state.json")
        if isinstance(state, dict):
            told = state.get("global_step")
            if self.step is None and isinstance(told, int):
                self.step = told
            if told != self.step or isinstance(told, bool):
                detail = _("the folder says {folder}, trainer_state.json says {step}")
                detail = detail.format(folder=self.step, step=str(told)[:20])
                self.problems.add("step_mismatch", "error", detail, "trainer_state.json")
        # A step whose numbers overflowed in fp16 is none to the schedule.
        # accelerate's schedule takes as many steps at once as there are ranks, where it was prepared by it.
        ranks = sum(name.startswith("rng_state_") for name in self.files) or 1
        told = self._scheduled if isinstance(self._scheduled, int) else self.step
        if told not in (self.step, (self.step or 0) * ranks) and "scaler.pt" not in self.files:
            detail = _("the folder says {folder}, the learning rate's schedule is at {step}")
            detail = detail.format(folder=self.step, step=self._scheduled)
            self.problems.add("step_mismatch", "warning", detail, "scheduler.pt")
        latest = self.files.get("latest")
        if latest is None or not 0 < latest.size < 1000 or not any(n.startswith("global_step") for n in self.files):
            return
        try:
            tag = latest.path.read_text(errors="replace").strip()
        except OSError:
            return
        if not any(name.startswith(f"{tag}/") for name in self.files):
            detail = _("the folder {folder}, which it names, is missing").format(folder=tag)
            self.problems.add("missing_shard", "error", detail, "latest")
        elif tag != f"global_step{self.step}":
            detail = _("the folder says {folder}, ZeRO's part is {step}").format(folder=self.step, step=tag)
            self.problems.add("step_mismatch", "warning", detail, "latest")

    def _judge_jobs(self, jobs: dict[str, reading.Job]) -> None:
        for name, job in jobs.items():
            if job.error:
                self.problems.add("unreadable", "error", job.error, name)
            elif job.sha256 is not None and job.sha256 != self._hashes[name]:
                self.problems.add("hash_mismatch", "error", _("its content is not what was saved"), name)
            for check in self._checksums.get(name, ()) if name not in self._hashes else ():
                if not check.right and not job.error:
                    detail = _("the checksum of {record} is wrong").format(record=check.name[:100])
                    self.problems.add("hash_mismatch", "error", detail, name, subtype="crc32")

    def _judge_numbers(self, numbers: list[tuple[str, Numbers]]) -> None:
        for name, watch in numbers:
            if not watch.finite:
                detail = _("{tensor} has numbers that are not finite").format(tensor=watch.tensor.name[:200])
                self.problems.add("non_finite_weights", "error", detail, name)
        lora_b = [watch for name, watch in numbers if ".lora_B." in f"{watch.tensor.name}." and name in self.tensors]
        # The first step of a warm-up has a learning rate of 0: B is still as it began.
        if lora_b and all(watch.all_zero for watch in lora_b) and (self.step or 0) > 1:
            detail = _("all {n} lora_B are zero after {step} steps").format(n=len(lora_b), step=self.step)
            self.problems.add("zero_lora_b", "warning", detail)


def _is_optimizer(root: Any) -> bool:
    """Whether a pickle's content is the state of an optimizer; a class of a library may be one, too."""
    return not isinstance(root, dict | list | tuple) or (
        isinstance(root, dict) and {"state", "param_groups"} <= root.keys()
    )
