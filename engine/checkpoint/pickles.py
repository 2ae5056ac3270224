"""Pickles, read without running them: which globals they name, and their structure with inert stand-ins.

`pickletools` reads the opcodes first: what would make the interpreter allocate more than the pickle is worth is
refused, and every global is noted. Only then, and only where the structure is needed (which tensors, which shards),
an unpickler builds it; all that it can create are the stand-ins below.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import re
from dataclasses import dataclass, field
from typing import Any, Literal

LIMIT = 256 * 1024 * 1024  # bytes of one pickle; a model's structure takes a few megabytes
MAX_OPCODES = 30_000_000

Danger = Literal["unsafe", "unknown"]

# Names that a file of a training run may use. Functions are listed one by one: a library has others that run code.
_FUNCTIONS = frozenset(
    """
    _codecs.encode collections.OrderedDict collections.defaultdict collections.Counter collections.deque
    copyreg._reconstructor copy_reg._reconstructor functools.partial
    numpy.dtype numpy.ndarray numpy.core.multiarray._reconstruct numpy._core.multiarray._reconstruct
    numpy.core.multiarray.scalar numpy._core.multiarray.scalar numpy.core.numeric._frombuffer
    numpy._core.numeric._frombuffer numpy.random._pickle.__randomstate_ctor numpy.random.__RandomState_ctor
    numpy.random._pickle.__bit_generator_ctor numpy.random._pickle.__generator_ctor
    torch.device torch.dtype torch._utils._rebuild_tensor torch._utils._rebuild_tensor_v2
    torch._utils._rebuild_tensor_v3 torch._utils._rebuild_parameter torch._utils._rebuild_parameter_with_state
    torch._utils._rebuild_qtensor torch._utils._rebuild_sparse_tensor torch._utils._rebuild_nested_tensor
    torch._utils._rebuild_device_tensor_from_numpy torch._utils._rebuild_meta_tensor_no_storage
    torch._utils._rebuild_wrapper_subclass torch._utils._rebuild_device_tensor_from_cpu_tensor
    torch._tensor._rebuild_from_type_v2 torch.serialization._get_layout
    deepspeed.utils.tensor_fragment.fragment_address
    """.split()  # noqa: SIM905
)
_BUILTINS = frozenset(
    "bool bytearray bytes complex dict float frozenset int list object range set slice str tuple".split()  # noqa: SIM905
)
_LIBRARIES = frozenset(
    """
    torch numpy transformers trl peft accelerate deepspeed bitsandbytes torchao datasets tokenizers safetensors
    huggingface_hub collections datetime pathlib enum decimal uuid argparse
    """.split()  # noqa: SIM905
)
_DTYPES = re.compile(r"(b?float|u?int|complex|bool|half|double|short|long|q?u?int|bits)\d*\w*\Z")
# Modules of the standard library that reach the system or run code.
_DANGEROUS = frozenset(
    """
    os posix nt sys subprocess shutil socket runpy importlib pkgutil imp ctypes pty platform code codeop timeit
    profile cProfile pdb bdb trace webbrowser asyncio multiprocessing threading signal pickle _pickle dill
    cloudpickle marshal tempfile glob io urllib http ftplib smtplib requests httpx aiohttp operator
    inspect gc site venv ensurepip pip commands popen2 builtins __builtin__ __builtins__ nturl2path ssl sqlite3
    zipimport zipfile tarfile ast linecache fileinput logging _io _posixsubprocess
    """.split()  # noqa: SIM905
)


def danger(module: str, name: str) -> Danger | None:
    """What to think of a global: None (known and harmless), "unsafe" (can run code) or "unknown"."""
    full = f"{module}.{name}"
    root = module.partition(".")[0]
    if full in _FUNCTIONS or (module in ("builtins", "__builtin__") and name in _BUILTINS):
        return None
    if root in _LIBRARIES:
        if all(part.lstrip("_")[:1].isupper() for part in name.split(".")):
            return None  # a class, by the custom of all of these; functions were listed
        if module == "torch" and _DTYPES.match(name):
            return None
        return None if root == "datetime" else "unsafe"
    return "unsafe" if root in _DANGEROUS or "." in name else "unknown"


@dataclass
class Scan:
    """What the opcodes of one pickle say. `end` is where the pickle ended, in bytes; `error` why it did not."""

    globals: set[tuple[str, str]] = field(default_factory=set)
    end: int = 0
    error: str | None = None


def scan(data: bytes, start: int = 0) -> Scan:
    """Read the opcodes of the pickle that begins at `start`."""
    result = Scan(end=start)
    stream = io.BytesIO(data)
    stream.seek(start)
    strings: list[str] = []  # the last strings pushed: STACK_GLOBAL takes its two from there
    memo: dict[int, str] = {}
    last: str | None = None
    count = 0
    try:
        for opcode, argument, position in pickletools.genops(stream):
            count += 1
            name = opcode.name
            if name in ("GLOBAL", "INST"):
                module, _space, what = str(argument).partition(" ")
                result.globals.add((module, what))
            elif name == "STACK_GLOBAL":
                result.globals.add((strings[-2], strings[-1]) if len(strings) > 1 else ("?", "?"))
            elif name in ("EXT1", "EXT2", "EXT4"):
                result.globals.add(("copyreg", "extension"))
            elif name == "MEMOIZE":
                if last is not None:
                    memo[len(memo)] = last
                else:
                    memo[len(memo)] = ""
            elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
                index = int(argument or 0)
                if index > count:  # the interpreter would make its memo that long
                    result.error = "memo"
                    return result
                memo[index] = last or ""
            elif name in ("BINGET", "LONG_BINGET", "GET"):
                last = memo.get(int(argument or 0))
                if last:
                    strings.append(last)
                continue
            if (isinstance(argument, str) and "UNICODE" in name) or name in ("STRING", "BINSTRING", "SHORT_BINSTRING"):
                last = str(argument)
                strings = [*strings[-3:], last]
            elif name not in ("MEMOIZE", "BINPUT", "LONG_BINPUT", "PUT"):
                last = None
            result.end = (position or 0) + 1
            if count > MAX_OPCODES:
                result.error = "too long"
                return result
    except (ValueError, IndexError, KeyError, OverflowError, UnicodeDecodeError, MemoryError, TypeError) as error:
        result.error = str(error)[:120] or type(error).__name__
    return result


class Inert:
    """Stands for whatever a pickle creates: keeps arguments and state, does nothing."""

    path = ""
    args: tuple[Any, ...]
    state: Any
    entries: dict[Any, Any]
    listed: list[Any]

    def __new__(cls, *args: Any, **kwargs: Any) -> Inert:
        """Make one from any arguments."""
        self = object.__new__(cls)
        self.args = args
        self.state = None
        self.entries = {}
        self.listed = []
        return self

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        self.entries[key] = value

    def append(self, value: Any) -> None:
        """Take a list's element."""
        self.listed.append(value)

    def extend(self, values: Any) -> None:
        """Take a list's elements."""
        self.listed.extend(values)

    def add(self, value: Any) -> None:
        """Take a set's element."""
        self.listed.append(value)

    def __call__(self, *args: Any, **kwargs: Any) -> Inert:
        """Calling a stand-in gives another one."""
        return Inert(*args)

    def get(self, name: str) -> Any:
        """A field of the object's state, or None."""
        return self.state.get(name) if isinstance(self.state, dict) else None


@dataclass(frozen=True)
class Persistent:
    """A reference to something outside of the pickle (torch: a storage)."""

    value: Any


class _InertUnpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream, encoding="latin-1")
        self._made: dict[tuple[str, str], Any] = {("collections", "OrderedDict"): dict}

    def find_class(self, module: str, name: str) -> Any:
        """Never a real class or function."""
        key = (module, name)
        if key not in self._made:
            self._made[key] = type("Stand", (Inert,), {"path": f"{module}.{name}"})
        return self._made[key]

    def persistent_load(self, pid: Any) -> Persistent:
        """References stay references."""
        return Persistent(pid)


def structure(data: bytes) -> Any:
    """What a pickle that `scan` found sound would build, of stand-ins; None when it cannot be built."""
    try:
        return _InertUnpickler(io.BytesIO(data)).load()
    except Exception:  # noqa: BLE001 - whatever a hostile pickle brings up: there is no structure then
        return None
