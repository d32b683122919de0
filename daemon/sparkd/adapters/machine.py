"""What this machine is, read once at the start: its boot, kernel and driver. What cannot be read is empty."""

from __future__ import annotations

import platform
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
DRIVER = Path("/proc/driver/nvidia/version")


def boot_id() -> str:
    """Return the id of this boot; another one after each start of the machine."""
    return _first_line(BOOT_ID)


def kernel_release() -> str:
    """Return the kernel's release, as `uname -r` says it."""
    return platform.release()


def driver_version() -> str:
    """Return what the NVIDIA driver says of itself, empty where there is none."""
    return _first_line(DRIVER)


def _first_line(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").partition("\n")[0].strip()
    except OSError:
        return ""
