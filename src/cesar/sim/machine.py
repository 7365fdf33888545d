"""What a simulation runs on, and how much memory it takes."""

from __future__ import annotations

import os
import platform
import re
import resource
import sys
from pathlib import Path


def peak_rss_bytes() -> int:
    """The most memory that this process has held so far."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def machine() -> str:
    """The machine in a line: system, processor, cores and memory."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    parts = (f"{platform.system()} {platform.machine()}", _processor(), f"{os.cpu_count()} cores")
    return ", ".join([*filter(None, parts), f"{memory / 1e9:.1f} GB of memory"])


def _processor() -> str:
    """The processor's name; Linux tells it in a file only, and virtual machines may keep it to themselves."""
    file = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", file.read_text(), re.MULTILINE) if file.exists() else None
    return found[1].strip() if found else platform.processor()
