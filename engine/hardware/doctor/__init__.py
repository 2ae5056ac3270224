"""The doctor: looks at everything a run needs on this machine and says how to fix what is wrong.

Light, and without the network. What takes long (importing torch, in its own process) runs beside the rest.
"""

from __future__ import annotations

from engine.hardware.doctor.check import Check, Report, State
from engine.workspace import Workspace

__all__ = ["Check", "Report", "State", "run"]


def run(workspace: Workspace, python: str, *, torch: bool = True) -> Report:
    """Check this machine.

    Args:
        workspace: whose disk is looked at; nothing is made there.
        python: the training interpreter.
        torch: whether to import torch there (seconds; in a process of its own).
    """
    from engine.hardware.doctor import machine, software, terminal
    from engine.hardware.gpus import Probe

    with software.Programs(python, torch=torch) as programs:
        with Probe() as probe:
            gpus = probe.list()
            samples = probe.sample()
            gpu_checks = machine.gpu_checks(probe, gpus, samples)
            driver = probe.driver
        disk_checks = machine.disk_checks(workspace)
        memory_checks = machine.memory_checks()
        terminal_checks = terminal.checks(programs)
        software_checks = software.checks(programs, driver, gpus)
    return Report([*software_checks, *gpu_checks, *memory_checks, *disk_checks, *terminal_checks])
