"""What a simulation runs on, and how much memory it takes."""

from __future__ import annotations

import os
import platform
import resource
import sys
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


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
    """The processor's name, which Linux tells in a file only. Virtual machines may shorten it to a maker's, so that two
    generations look alike; family and model tell them apart, and sums of floating-point numbers differ between them.
    """
    lines = CPUINFO.read_text().splitlines() if CPUINFO.exists() else []
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    name = fields.get("model name") or platform.processor()
    generation = [
        f"{word} {fields[key]}"
        for key, word in (("cpu family", "family"), ("model", "model"))
        if key in fields
    ]
    return f"{name} ({', '.join(generation)})" if generation else name
