"""The causes that a post-mortem knows: how each shows itself in logs, what it means, and what to do about it.

docs/troubleshooting.md is this table for people; a test holds the two together.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from engine.text import _


@dataclass(frozen=True)
class Cause:
    """One cause. Texts are untranslated; `{run}` in them is the run's name.

    Attributes:
        kind: its name in JSON.
        title: what it is called.
        meaning: one sentence about what happened.
        signs: what it looks like in a log, the surest first.
        kinds: kinds of errors that ranks and supervisor report for it.
        fixes: what to do, each with the command for it (empty where there is none).
    """

    kind: str
    title: str
    meaning: str
    signs: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    fixes: tuple[tuple[str, str], ...] = ()
    _patterns: list[re.Pattern[str]] = field(default_factory=list, compare=False, repr=False)

    def patterns(self) -> list[re.Pattern[str]]:
        """The signs, compiled on first use."""
        if not self._patterns:
            self._patterns.extend(re.compile(sign) for sign in self.signs)
        return self._patterns


RESUME = ("go on from the newest checkpoint", "ftui resume {run}")
# The first whose sign is found explains an end that nobody reported: a cause comes before what follows from it.
CAUSES = (
    Cause(
        "driver",
        "the GPU or its driver failed",
        "The driver reported an error of the device; the processes that used it cannot go on.",
        (
            r"Xid \(PCI:[0-9a-fA-F:.]+\): \d+",
            r"fallen off the bus",
            r"uncorrectable ECC error",
            r"CUDA error: (an illegal memory access|unspecified launch failure|device-side assert|misaligned address"
            r"|hardware stack error|the launch timed out)",
            r"CUDA_ERROR_(ILLEGAL_ADDRESS|ECC_UNCORRECTABLE|LAUNCH_FAILED|UNKNOWN)",
            r"HSA_STATUS_ERROR|HIP error: (an illegal|unspecified launch)",
            r"NVML: (GPU is lost|Unknown Error)",
        ),
        ("gpu_lost", "xid"),
        (
            ("see what the driver says", "sudo dmesg | grep -iE 'xid|nvrm' | tail"),
            (
                "check the device; ECC errors and Xid 48, 63, 64, 79, 94, 95 are for the provider",
                "ftui doctor --gpu-check",
            ),
            ("go on without the device", "ftui resume {run} --gpus N"),
        ),
    ),
    Cause(
        "out_of_memory",
        "out of memory",
        "A rank asked for more memory than its device has left.",
        (
            r"(CUDA|HIP|XPU) out of memory",
            r"OutOfMemoryError",
            r"CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED",
            r"DefaultCPUAllocator: (can't allocate memory|not enough memory)",
            r"^(\S+: )?MemoryError\b|Unable to allocate [\d.]+ [KMGT]iB|std::bad_alloc",
        ),
        ("out_of_memory",),
    ),
    Cause(
        "oom_killer",
        "the kernel's OOM killer ended a rank",
        "The server, or the container's limit, had no host memory left, and the kernel ended the largest process.",
        (r"(Out of memory|Memory cgroup out of memory): Killed process \d+", r"oom-kill:constraint="),
        ("oom_killer",),
        (
            ("see which process and how large it was", "sudo dmesg | grep -i 'killed process' | tail"),
            ("load the data with fewer workers", "ftui resume {run} dataloader_num_workers=0"),
            ("go on from the newest checkpoint once other users of the memory are gone", "ftui resume {run}"),
        ),
    ),
    Cause(
        "disk_full",
        "the disk is full",
        "Something could not be written: no room, or the quota is used up.",
        (
            r"No space left on device|\[Errno 28\]|StorageFull",
            r"Disk quota exceeded|\[Errno 122\]",
            r"PytorchStreamWriter failed writing|inline_container\.cc:\d+\] \. unexpected pos",
        ),
        ("disk_full",),
        (
            ("see what old checkpoints take", "ftui ckpt prune {run}"),
            ("remove them", "ftui ckpt prune {run} --yes"),
            RESUME,
        ),
    ),
    Cause(
        "collective_timeout",
        "the ranks waited for each other in vain",
        "A collective operation did not come together in time: a rank hung, died, or did something else.",
        (
            r"Watchdog caught collective operation timeout",
            r"Timed out waiting \d+ ?ms for (recv|send) operation",
            r"DistStoreError|Timed out after \d+ seconds waiting for clients",
            r"Socket Timeout|wait timeout after \d+ms",
            r"Timeout\(ms\)=\d+\) ran for \d+ milliseconds",
        ),
        ("collective_timeout", "timeout"),
        (
            ("see which rank said something else than the others", "ftui logs {run} --rank N"),
            RESUME,
            ("if it comes again: have NCCL say more", "NCCL_DEBUG=INFO ftui resume {run}"),
        ),
    ),
    Cause(
        "versions",
        "packages that do not fit each other",
        "A library, the driver and the program are of versions that do not work together.",
        (
            r"CUDA driver version is insufficient",
            r"no kernel image is available for execution",
            r"Driver/library version mismatch",
            r"undefined symbol: ",
            r"cannot import name '\w+' from '(torch|transformers|trl|peft|accelerate|datasets|bitsandbytes)",
            r"(is required for a normal functioning|requires? at least version|but found \w+==)",
            r"FlashAttention only supports Ampere",
            r"version `GLIBC\w*_[\d.]+' not found",
        ),
        ("environment", "versions", "not_as_asked"),
        (
            ("see versions, driver and what is wrong with them", "ftui doctor"),
            ("rebuild the environment that the run was started with", "pip install -r {path}/requirements.txt"),
            RESUME,
        ),
    ),
    Cause(
        "missing_package",
        "a package is not installed",
        "The recipe asks for something that needs a package which the training environment does not have.",
        (r"ModuleNotFoundError: No module named",),
        ("missing_package",),
        (
            ("see which packages are there", "ftui doctor"),
            ("once it is installed: go on from the newest checkpoint", "ftui resume {run}"),
        ),
    ),
    Cause(
        "hub",
        "the model or the data cannot be fetched",
        "A name on the hub could not be reached, does not exist, or is not open to this account.",
        (
            r"We couldn't connect to '[^']*' to load",
            r"LocalEntryNotFoundError|OfflineModeIsEnabled|outgoing traffic has been disabled",
            r"GatedRepoError|Cannot access gated repo",
            r"RepositoryNotFoundError|is not a valid model identifier|40[134] Client Error",
        ),
        ("hub", "no_model", "missing_model", "model_not_here"),
        (
            ("see whether the hub is reached, and as whom", "ftui doctor"),
            ("for a gated model: accept its terms on its page, then", "hf auth login"),
            (
                "on a server without a way out: copy the model there, name its folder",
                "ftui run {recipe} model_name_or_path=DIR",
            ),
        ),
    ),
    Cause(
        "template",
        "the chat template",
        "The template cannot be read, does not fit the rows, or does not mark what is to be learned.",
        (
            r"TemplateSyntaxError|jinja2\.exceptions|UndefinedError",
            r"Conversation roles must alternate|chat template is not training-compatible",
        ),
        ("template", "no_chat_template"),
        (
            ("see a row as the template makes it", "ftui data preview {data}"),
            ("use another template", "ftui run {recipe} chat_template_path=FILE"),
            ("learn the whole conversation instead", "ftui run {recipe} assistant_only_loss=false"),
        ),
    ),
    Cause(
        "data",
        "the data",
        "A row or a file of the training data cannot be used.",
        (r"DatasetGenerationError|ArrowInvalid|JSONDecodeError",),
        (
            "data",
            "bad_row",
            "no_rows",
            "no_row",
            "no_dataset",
            "data_lost",
            "nothing_to_train",
            "no_eval_data",
            "too_few_rows",
            "file_changed",
            "mixed_formats",
            "unknown_column",
            "empty_file",
            "unreadable",
        ),
        (
            ("see everything that is wrong with it, with lines", "ftui data check {data}"),
            ("go on without the bad rows", "ftui run {recipe} --force"),
        ),
    ),
    Cause(
        "hang",
        "the ranks hung",
        "No rank showed a sign of life for many step times; their stacks were noted, then they were ended.",
        (),
        ("hang",),
        (
            ("see where each rank stood", "cat {path}/logs/hang-*-rank-*.txt"),
            RESUME,
            ("if steps do take that long: wait longer", "ftui resume {run} hang_after_s=3600"),
        ),
    ),
    Cause(
        "loss_not_finite",
        "the loss is not a number",
        "The training diverged: a loss was NaN or infinite. Nothing was saved after it.",
        (r"the loss is (nan|inf|-inf) at step",),
        ("loss_not_finite",),
        (
            ("start again with a lower learning rate", "ftui run {recipe} learning_rate={half_rate}"),
            ("look at the rows around that step", "ftui data check {data}"),
            ("if it was the device (ECC errors, a GPU that runs hot): go on", "ftui resume {run}"),
        ),
    ),
    Cause(
        "loss_spike",
        "the loss jumped",
        "The loss rose to many times what it was and stayed there.",
        (),
        ("loss_spike",),
        (
            ("go on from before it", "ftui resume {run} --step N"),
            ("start again with a lower learning rate", "ftui run {recipe} learning_rate={half_rate}"),
        ),
    ),
    Cause(
        "eval_rise",
        "the evaluation only rises",
        "The model memorizes: evaluations got worse while the training loss fell.",
        (),
        ("eval_rise",),
        (
            ("take the best checkpoint as the result", "ftui ckpt list {run}"),
            ("train for fewer epochs", "ftui run {recipe} num_train_epochs=1"),
        ),
    ),
    Cause(
        "peer_lost",
        "a rank was left by another",
        "A rank ended because another one was gone. The other one's log says why.",
        (
            r"Connection (closed|reset) by peer",
            r"ncclRemoteError|ncclSystemError|ncclInternalError|NCCL error",
            r"Broken pipe",
        ),
        ("peer_lost",),
        (("read the logs of the other ranks", "ftui logs {run} --rank N"), RESUME),
    ),
    Cause(
        "signal",
        "a process was ended by a signal",
        "Somebody or something ended it: a kill, a scheduler, the kernel.",
        (r"Signal \d+ \(SIG[A-Z]+\) received by PID", r"exitcode\s*: -\d+"),
        ("signal",),
        (("see whether the kernel did it", "sudo dmesg | tail -50"), RESUME),
    ),
    Cause(
        "lost",
        "the supervisor is gone",
        "The process that watched over the run was killed, or the server went down. Its ranks saved and ended.",
        (),
        ("lost", "moved"),
        (RESUME,),
    ),
)
UNKNOWN = Cause(
    "unknown",
    "not known",
    "None of the known causes fits; the end of the log is all there is.",
    fixes=(("read the whole log", "ftui logs {run}"), RESUME),
)


def by_kind(kind: str) -> Cause | None:
    """The cause that an error's kind names."""
    return next((cause for cause in CAUSES if kind in cause.kinds or kind == cause.kind), None)


def title(cause: Cause) -> str:
    """Its title in the user's language."""
    return _(cause.title)
