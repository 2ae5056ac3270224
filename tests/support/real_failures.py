"""Causes failures for real, in processes that do nothing else, and prints what a rank would report of each.

`python tests/support/real_failures.py WHAT [FOLDER]`; one JSON object on stdout.
"""

from __future__ import annotations

import datetime
import json
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from engine.train import failure


def memory(_folder: Path) -> None:
    """The tensor allocator at the limit of the address space."""
    import torch

    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    model = torch.nn.Linear(8, 8)

    def compute_loss() -> torch.Tensor:
        return model(torch.empty(1 << 33, 8)).sum()

    compute_loss()


def python_memory(_folder: Path) -> None:
    """The interpreter's own allocator."""
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    bytearray(1 << 31)


def full_torch(folder: Path) -> None:
    """torch.save on a full disk: it does not say so itself."""
    import torch

    torch.save({"x": torch.zeros(1 << 20)}, folder / "optimizer.pt")


def full_safetensors(folder: Path) -> None:
    """safetensors on a full disk."""
    import torch
    from safetensors.torch import save_file

    save_file({"x": torch.zeros(1 << 20)}, folder / "model.safetensors")


def full_write(folder: Path) -> None:
    """Plain writes on a full disk."""
    with open(folder / "file", "wb", buffering=0) as file:
        while True:
            file.write(b"x" * 65536)


def _group(folder: Path, rank: int, seconds: float) -> None:
    import torch.distributed as dist

    store = dist.FileStore(str(folder / "store"), 2)
    timeout = datetime.timedelta(seconds=seconds)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timeout)


def _two(folder: Path, seconds: float, other: Callable[[], None]) -> None:
    """This process is rank 0 and reduces; the forked one is rank 1 and does something else."""
    import torch
    import torch.distributed as dist

    child = os.fork()
    if not child:
        threading.Timer(60, os._exit, (1,)).start()
        _group(folder, 1, 30)
        other()
        os._exit(0)
    try:
        _group(folder, 0, 30)
        group = dist.new_group(timeout=datetime.timedelta(seconds=seconds)) if seconds < 30 else None
        dist.all_reduce(torch.zeros(1), group=group)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def timeout(folder: Path) -> None:
    """A collective in which the other rank does not join."""

    def waits() -> None:
        import torch.distributed as dist

        dist.new_group(timeout=datetime.timedelta(seconds=1))
        time.sleep(60)

    _two(folder, 1.0, waits)


def killed_peer(folder: Path) -> None:
    """kill -9 of the other rank."""
    _two(folder, 60.0, lambda: os.kill(os.getpid(), signal.SIGKILL))


def hub(_folder: Path) -> None:
    """A model that is not in the cache, without a network."""
    from transformers import AutoConfig

    AutoConfig.from_pretrained("nobody/nothing-of-this-name")


def template(_folder: Path) -> None:
    """A chat template that does not parse."""
    from jinja2 import Template

    Template("{% for message in messages %}{{ message.content }")


def refused(_folder: Path) -> None:
    """A chat template that refuses the rows, as Mistral's does."""
    from jinja2.exceptions import TemplateError

    raise TemplateError("Conversation roles must alternate user/assistant/user/assistant/...")


def versions(_folder: Path) -> None:
    """A library that lacks what the program wants of it."""
    from transformers import NoSuchTrainer  # noqa: F401


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    try:
        globals()[sys.argv[1]](Path(sys.argv[2]))
    except BaseException as error:  # whatever it is: that is the question
        told = failure.explain(error, 7)
        document = {**told.to_json(), "phase": failure.phase_of(error), "memory": failure.memory_held()}
        print(json.dumps({**document, "text": f"{type(error).__name__}: {error}"[:2000]}), flush=True)
        os._exit(0)
