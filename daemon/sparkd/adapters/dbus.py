"""The session with systemd over the system's message bus: calls with a deadline, signals, and coming back.

A bus that is lost says nothing about units: calls wait for it until their deadline and then fail with
`BusLostError`; after a reconnect whoever follows something is told to look again (`on_up`).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Callable, Iterable
from typing import Any

import structlog
from dbus_fast import BusType, Message, MessageType, Variant
from dbus_fast.aio import MessageBus
from dbus_fast.errors import DBusFastError

log = structlog.get_logger(__name__)

SERVICE = "org.freedesktop.systemd1"
MANAGER_PATH = "/org/freedesktop/systemd1"
MANAGER = f"{SERVICE}.Manager"
PROPERTIES = "org.freedesktop.DBus.Properties"
# systemd answers within milliseconds; polkit may have to start first.
CALL_DEADLINE_S = 10.0
RECONNECT_S = 1.0
# What a connection can die of: sockets, the library's own errors, a bus that closes in the middle.
FAILURES = (OSError, EOFError, DBusFastError)


# The last parts of the names of errors by which polkit says no.
DENIED = (".AccessDenied", ".InteractiveAuthorizationRequired")


class BusLostError(OSError):
    """The bus is not there or does not answer: nothing is known."""


class RefusedError(OSError):
    """systemd answered with an error; `name` is its name on the bus."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(errno.EPERM if name.endswith(DENIED) else 0, text)
        self.name = name

    def __str__(self) -> str:
        return f"{self.strerror} ({self.name})"


def unit_path(unit: str) -> str:
    """Return the object path of a unit: what is no letter or digit is written as _xx (sd_bus_path_encode)."""
    plain = (c if c.isascii() and c.isalnum() else "".join(f"_{b:02x}" for b in c.encode()) for c in unit)
    return f"{MANAGER_PATH}/unit/{''.join(plain)}"


class _Session(MessageBus):
    """A connection whose failed writes are told once: by the call that waits for the answer."""

    def send(self, msg: Message) -> asyncio.Future[Any]:  # type: ignore[override]
        """Send; the future fails with the connection, also where nobody waits for it.

        The library's own leaves two futures behind where the write itself is refused: it ends the session,
        which fails whoever waits, and then raises what asyncio says of a socket that is closed by now.
        """
        msg.serial = msg.serial or self.next_serial()
        sent: asyncio.Future[Any] = self._loop.create_future()
        sent.add_done_callback(fetched)
        if self._writer is not None:
            with contextlib.suppress(OSError):
                self._writer.schedule_write(msg, sent)
        return sent


def fetched(done: asyncio.Future[Any]) -> None:
    """Ask for the failure of what may end when nobody waits for it: asyncio writes of each not asked for."""
    if not done.cancelled():
        done.exception()


class SystemBus:
    """One connection that is kept up.

    Args:
        rules: match rules of the signals that are wanted.
        on_signal: takes each of them.
        on_up: called after each connect.
        address: of the bus; None = the system's own.
    """

    def __init__(
        self,
        rules: Iterable[str],
        on_signal: Callable[[Message], None],
        on_up: Callable[[], None],
        *,
        address: str | None = None,
    ) -> None:
        self._rules = tuple(rules)
        self._on_signal, self._on_up = on_signal, on_up
        self._address = address
        self._bus: MessageBus | None = None
        self._up = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None

    @property
    def is_up(self) -> bool:
        """Whether there is a session now."""
        return self._bus is not None

    async def manager(self, member: str, signature: str = "", *body: Any) -> list[Any]:
        """Call a method of systemd's manager. Raises BusLostError, RefusedError."""
        return await self._call(MANAGER_PATH, MANAGER, member, signature, body)

    async def properties(self, path: str) -> dict[str, Any]:
        """Return all properties of an object, of all its interfaces. Raises BusLostError, RefusedError."""
        (found,) = await self._call(path, PROPERTIES, "GetAll", "s", ("",))
        return {name: value.value if isinstance(value, Variant) else value for name, value in found.items()}

    async def close(self) -> None:
        """Let the session go."""
        bus = self._bus
        if self._keeper:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        if bus:
            await _disconnect(bus)

    async def _call(
        self, path: str, interface: str, member: str, signature: str, body: Iterable[Any]
    ) -> list[Any]:
        if self._keeper is None or self._keeper.done():
            self._keeper = asyncio.create_task(self._keep(), name="system-bus")
        message = Message(
            destination=SERVICE,
            path=path,
            interface=interface,
            member=member,
            signature=signature,
            body=list(body),
        )
        try:
            async with asyncio.timeout(CALL_DEADLINE_S):
                await self._up.wait()
                if self._bus is None:
                    raise BusLostError("the system bus was lost")
                reply = await self._bus.call(message)
        except FAILURES as error:
            raise BusLostError(f"the system bus does not answer: {member} ({error or 'deadline'})") from error
        return _answer(reply, member)

    async def _keep(self) -> None:
        """Connect, wait for the loss, connect again; a failure is told once."""
        told = False
        while True:
            try:
                async with asyncio.timeout(CALL_DEADLINE_S):
                    bus = await self._connected()
            except FAILURES as error:
                if not told:
                    log.warning("no system bus", reason=f"{type(error).__name__}: {error}"[:300])
                told = True
                await asyncio.sleep(RECONNECT_S)
                continue
            told = False
            self._bus = bus
            self._up.set()
            self._on_up()
            try:
                await asyncio.shield(bus.wait_for_disconnect())  # type: ignore[no-untyped-call]
            except FAILURES as error:
                log.debug("system bus ended", reason=str(error))
            finally:
                self._up.clear()
                self._bus = None
            log.warning("system bus lost", note="looks again when it is back; nothing is taken for dead")
            await asyncio.sleep(RECONNECT_S)

    async def _connected(self) -> MessageBus:
        bus = _Session(bus_address=self._address, bus_type=BusType.SYSTEM)
        await bus.connect()
        try:
            await self._subscribe(bus)
        except FAILURES:
            await _disconnect(bus)
            raise
        return bus

    async def _subscribe(self, bus: MessageBus) -> None:
        bus.add_message_handler(self._heard)
        for rule in self._rules:
            await _done(
                bus, "org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus", "AddMatch", rule
            )
        # Without a subscriber systemd sends no signals of its own.
        await _done(bus, SERVICE, MANAGER_PATH, MANAGER, "Subscribe")

    def _heard(self, message: Message) -> None:
        if message.message_type is MessageType.SIGNAL:
            self._on_signal(message)


async def _disconnect(bus: MessageBus) -> None:
    """Close the connection; return when its socket is closed."""
    bus.disconnect()
    with contextlib.suppress(*FAILURES):
        async with asyncio.timeout(CALL_DEADLINE_S):
            await bus.wait_for_disconnect()  # type: ignore[no-untyped-call]


async def _done(bus: MessageBus, to: str, path: str, interface: str, member: str, *body: str) -> None:
    signature = "s" * len(body)
    message = Message(
        destination=to, path=path, interface=interface, member=member, signature=signature, body=list(body)
    )
    _answer(await bus.call(message), member)


def _answer(reply: Message | None, member: str) -> list[Any]:
    if reply is None:
        raise BusLostError(f"the system bus gave no answer: {member}")
    if reply.message_type is MessageType.ERROR:
        text = str(reply.body[0]) if reply.body else "no reason given"
        name = str(reply.error_name)
        hint = "; is sparkd's polkit rule there? sudo sparkctl install" if name.endswith(DENIED) else ""
        raise RefusedError(name, f"systemd refuses {member}: {text}{hint}")
    return list(reply.body)
