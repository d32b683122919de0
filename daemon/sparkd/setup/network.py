"""Choosing addresses: which interface is the fabric, who is on its other end."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field

# NVIDIA's guide for two Sparks gives the fabric 192.168.200.12 and .13.
USUAL = ipaddress.IPv4Network("192.168.200.0/24")
USUAL_PAIR = ("192.168.200.12", "192.168.200.13")
LOOPBACK = "lo"


class NetworkError(Exception):
    """The addresses cannot be found out; the text says what to give."""


@dataclass(frozen=True, slots=True)
class Link:
    """One IPv4 address of one interface.

    Attributes:
        interface, address: its names. network: what it reaches directly.
        rdma: the interface belongs to an RDMA device.
        gateway: the way to the rest of the world goes over it.
    """

    interface: str
    address: str
    network: ipaddress.IPv4Network
    rdma: bool = False
    gateway: bool = False


@dataclass(frozen=True, slots=True)
class Network:
    """What this machine knows: its links, who was heard on them, and what names resolve to."""

    links: tuple[Link, ...] = ()
    neighbours: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def own_link(network: Network, address: str | None = None, interface: str | None = None) -> Link:
    """Return the link of the fabric. Raises NetworkError where it is not the only candidate.

    With address and interface given nothing is looked up: the machine may be another one (--root).
    """
    if address is not None and interface is not None:
        return Link(interface, checked(address), ipaddress.IPv4Network(f"{address}/24", strict=False))
    links = [link for link in network.links if link.interface != LOOPBACK]
    if address is not None:
        found = [link for link in network.links if link.address == address]
        if not found:
            raise NetworkError(f"--address {address}: no interface of this machine has it ({_listed(links)})")
        return found[0]
    rdma = [link for link in links if link.rdma]
    usual = [link for link in (rdma or links) if ipaddress.IPv4Address(link.address) in USUAL]
    for candidates in (usual, rdma):
        if len(candidates) == 1:
            return candidates[0]
        if candidates:
            raise NetworkError(
                f"more than one address may be the fabric ({_listed(candidates)}): say --address ADDRESS"
            )
    raise NetworkError(
        f"no RDMA interface has an IPv4 address, and none is in {USUAL} ({_listed(links)}): give the "
        "fabric its "
        "addresses (netplan; NVIDIA's guide for two Sparks), or say --address ADDRESS"
    )


def management(network: Network, own: Link) -> str | None:
    """Return this machine's address towards the rest of the world, where it is another than the fabric's."""
    found = [link.address for link in network.links if link.gateway and link.address != own.address]
    return found[0] if found else None


def worker_address(network: Network, own: Link, name: str) -> tuple[str, str]:
    """Return (a worker's address on the fabric, how it was found). Raises NetworkError where it is not."""
    resolved = [a for a in network.names.get(name, ()) if _on(own, a)]
    if resolved:
        return resolved[0], f"{name} resolves to it"
    heard = [a for a in network.neighbours.get(own.interface, ()) if _on(own, a)]
    if len(heard) == 1:
        return heard[0], f"the only machine heard on {own.interface}"
    if not heard and own.address in USUAL_PAIR:
        other = USUAL_PAIR[own.address == USUAL_PAIR[0]]
        return other, "assumed, as NVIDIA's guide for two Sparks has it; nobody was heard there yet"
    heard_text = (
        f"{len(heard)} machines are heard on {own.interface}"
        if heard
        else f"nobody is heard on {own.interface}"
    )
    raise NetworkError(f"the address of {name} is not known ({heard_text}): say --worker {name}=ADDRESS")


def second_address(network: Network, own: Link, name: str) -> str | None:
    """Return the address that a worker's name resolves to beside the fabric."""
    others = [a for a in network.names.get(name, ()) if not _on(own, a) and not a.startswith("127.")]
    return others[0] if others else None


def checked(text: str) -> str:
    """Return an IPv4 address as it is written everywhere. Raises NetworkError."""
    try:
        return str(ipaddress.IPv4Address(text))
    except ValueError:
        raise NetworkError(f"{text!r} is no IPv4 address such as 192.168.200.12") from None


def _on(own: Link, address: str) -> bool:
    return ipaddress.IPv4Address(address) in own.network and address != own.address


def _listed(links: list[Link]) -> str:
    return ", ".join(f"{link.interface} {link.address}" for link in links) or "there are none"
