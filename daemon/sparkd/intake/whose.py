"""Whose is what, without a configuration: nodes of addresses and ranks, read from the heads of logs."""

from __future__ import annotations

import re
from collections.abc import Iterable

from sparkd.intake.lines import text_of
from sparkd.intake.whole import Origin
from sparkd.signals import wrapping
from sparkd.signals.match import Places

_ADDRESS = rb"(\d{1,3}(?:\.\d{1,3}){3})"
_RANK_AT = re.compile(rb"\(Ray\w* pid=\d+, ip=" + _ADDRESS + rb"\)[^\n]{0,60}?[ (_]TP(\d{1,3})\b")
_RANK_HERE = re.compile(rb"(?:^|\n)[^\n,]{0,80}?\((?:Vllm)?Worker[_ ]TP(\d{1,3})(?: pid=\d+)?\)")
_OWN = re.compile(
    rb"(?:Local node IP: |\[state-dump\] Node name: |--node-ip-address[= ]|kill details: Memory on the node "
    rb"\(IP: |(?:node_ip_address|VLLM_HOST_IP)['\"]?[=:] ?['\"]?)" + _ADDRESS
)
_HEADS = (b"(APIServer pid=", b"vLLM API server version", b"Starting vLLM server on ", b"gcs_server.cc:")


def places_of(heads: Iterable[tuple[Origin, bytes]]) -> Places:
    """Return what the beginnings of logs tell; nodes that nobody named have their address as their name."""
    heads = list(heads)
    addresses: dict[str, str] = {}
    for origin, head in heads:
        for node, own in _own_addresses(origin, head).items():
            if len(own) == 1:
                addresses.setdefault(own.pop(), node)
    ranks: dict[int, str] = {}
    for origin, head in heads:
        for address, rank in _RANK_AT.findall(head):
            ranks.setdefault(int(rank), addresses.get(address.decode(), address.decode()))
        for rank in _RANK_HERE.findall(head) if origin.node else ():
            ranks.setdefault(int(rank), origin.node or "")
    first = [origin.node for origin, head in heads if origin.node and any(mark in head for mark in _HEADS)]
    return Places(addresses, ranks, first[0] if len(set(first)) == 1 else None, open=True)


def _own_addresses(origin: Origin, head: bytes) -> dict[str, set[str]]:
    """Return the addresses that nodes call their own: the named one's, else those of a journal's machines."""
    found: dict[str, set[str]] = {}
    for said in _OWN.finditer(head):
        node = origin.node
        if node is None:
            begin = head.rfind(b"\n", 0, said.start()) + 1
            node = wrapping.unwrap(text_of(head[begin : said.start()])).machine
        if node:
            found.setdefault(node, set()).add(said[1].decode())
    return found
