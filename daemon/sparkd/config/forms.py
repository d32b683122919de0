"""What single values of the file look like, and their canonical form. Standard library only.

Raises ValueError with what is allowed as its message.
"""

from __future__ import annotations

import ipaddress
import re

from sparkd.wire.names import NAME_PATTERN, is_name

SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB)")
FACTORS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
# Linux: IFNAMSIZ is 16 with its final zero; names of several interfaces are joined by commas, as NCCL does.
INTERFACES = re.compile(r"[A-Za-z0-9_.@:-]{1,15}(,[A-Za-z0-9_.@:-]{1,15})*")
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def parse_bytes(value: object) -> object:
    """Return the number of bytes of "44.6GiB"; other values are left to the number's own check."""
    if not isinstance(value, str) or value.strip().isdigit():
        return value
    found = SIZE.fullmatch(value.strip())
    if found is None:
        raise ValueError('must be a number of bytes, or a text such as "44GiB" (units B, KiB, MiB, GiB)')
    return round(float(found[1]) * FACTORS[found[2]])


def check_name(value: str) -> str:
    """Return the name of a node or a cluster."""
    if not is_name(value):
        raise ValueError(f"must match {NAME_PATTERN}")
    return value


def check_address(value: str) -> str:
    """Return an IPv4 address in its canonical form: what Ray, vLLM and NCCL compare as texts."""
    try:
        address = ipaddress.IPv4Address(value)
    except ValueError:
        raise ValueError("must be an IPv4 address such as 192.168.200.12") from None
    if address.is_unspecified or address.is_multicast:
        raise ValueError("must be the address of one node")
    return str(address)


def check_listen(value: str) -> str:
    """Return an IPv4 address to listen on; 0.0.0.0 is all of them."""
    return value if value == "0.0.0.0" else check_address(value)  # noqa: S104 - compared, not bound


def check_interface(value: str) -> str:
    """Return the name of a network interface, or several joined by commas."""
    if not INTERFACES.fullmatch(value):
        raise ValueError("must be the name of a network interface such as enp1s0f0np0, as `ip link` shows it")
    return value


def check_absolute(value: str) -> str:
    """Return an absolute path without a final slash."""
    if not value.startswith("/") or "\0" in value or value.strip() != value:
        raise ValueError("must be an absolute path")
    return value.rstrip("/") or "/"


def check_program(value: str) -> str:
    """Return a program: an absolute path, or a bare name that engine.path finds."""
    if not value or ("/" in value and not value.startswith("/")) or any(char.isspace() for char in value):
        raise ValueError("must be an absolute path, or a name that is looked up in engine.path")
    return value


def env_value(value: object) -> object:
    """Return numbers as the texts that an environment holds."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def check_env(value: dict[str, str]) -> dict[str, str]:
    """Return an environment whose names and values can be passed to a program."""
    for name, text in value.items():
        if not ENV_NAME.fullmatch(name):
            raise ValueError(f"{name!r} cannot name a variable")
        if "\0" in text:
            raise ValueError(f"the value of {name} has a zero byte")
    return value
