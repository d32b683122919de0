"""The session with the bus against one that a test speaks for: what is lost is told once."""

from __future__ import annotations

import asyncio
import gc
import struct
from pathlib import Path

import pytest
from dbus_fast import Message, MessageType

from sparkd.adapters.dbus import BusLostError, SystemBus

DEADLINE_S = 10.0
OURS = ":1.1"


class Bus:
    """Takes one session, says yes to all, and hangs up on demand."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        while not (line := await reader.readline()).startswith(b"BEGIN"):
            agreed = b"AGREE_UNIX_FD" if b"NEGOTIATE" in line else b"OK " + b"0" * 32
            writer.write(agreed + b"\r\n")
        while fixed := await reader.read(16):
            body, serial, fields = struct.unpack("<III", fixed[4:])
            await reader.readexactly((fields + 7) // 8 * 8 + body)
            reply = Message(
                message_type=MessageType.METHOD_RETURN,
                sender="org.freedesktop.DBus",
                destination=OURS,
                reply_serial=serial,
                serial=serial,
                signature="s",
                body=[OURS],
            )
            writer.write(bytes(reply._marshall(False)))
        writer.close()

    def hang_up(self) -> None:
        """At once: before the other side's loop has seen it."""
        self.writer.transport.get_extra_info("socket").shutdown(2)


def test_a_write_into_a_lost_bus_is_told_by_the_call_alone(tmp_path: Path) -> None:
    unfetched: list[str] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, said: unfetched.append(said["message"]))
        there, up = Bus(), asyncio.Event()
        server = await asyncio.start_unix_server(there.serve, tmp_path / "bus")
        bus = SystemBus((), lambda _: None, up.set, address=f"unix:path={tmp_path}/bus")
        async with asyncio.timeout(DEADLINE_S):
            await bus.manager("Ping")
            await up.wait()
            there.hang_up()
            with pytest.raises(BusLostError):
                await bus.manager("Ping")
        server.close()
        await bus.close()

    asyncio.run(main())
    gc.collect()
    assert unfetched == []
