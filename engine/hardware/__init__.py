"""The machine: GPUs (NVML, amd-smi), host memory, disks, versions, the catalogue of cards, and the doctor's checks.

Light: imports no training library; psutil, pynvml and subprocesses only where they are used.
"""
