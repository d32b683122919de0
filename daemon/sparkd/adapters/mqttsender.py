"""Sends what waits for the broker: at once, in its order, several on their way at a time."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Coroutine
from typing import Any, TypeVar

import aiomqtt

from sparkd.adapters.mqttdrops import Drops
from sparkd.adapters.mqttreasons import NO_ANSWER
from sparkd.ports import Clock
from sparkd.wire.codec import Encoder, Sealed, kind_of
from sparkd.wire.outbox import Outbox, Waiting
from sparkd.wire.refusal import WireError

TIMEOUT_S = 5.0
SENT_MAX = 16
"""Messages that the broker has not answered yet; it allows 20 (etc/mosquitto)."""
T = TypeVar("T")


class Sender:
    """The way out of one session after another.

    Args:
        outbox: what waits.
        encoder: makes bytes of it.
        clock: for the ages in reports.
        drops: counts what cannot be said.
        node: this node.
    """

    def __init__(self, outbox: Outbox, encoder: Encoder, clock: Clock, drops: Drops, node: str) -> None:
        self._outbox, self._encoder, self._clock = outbox, encoder, clock
        self._drops, self._node = drops, node
        self._client: aiomqtt.Client | None = None
        self._on_the_way: dict[Waiting, asyncio.Task[None]] = {}
        self._sent: deque[bytes] = deque(maxlen=2 * SENT_MAX)
        self._broken: asyncio.Future[aiomqtt.MqttError] | None = None

    async def run(self, client: aiomqtt.Client) -> None:
        """Send by this session until it is cancelled. Raises MqttError where it breaks."""
        self._client, self._broken = client, asyncio.get_running_loop().create_future()
        try:
            self.send()
            raise await self._broken
        finally:
            self._client = None
            tasks = list(self._on_the_way.values())
            self._on_the_way.clear()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def is_echo(self, payload: object) -> bool:
        """Whether this daemon has sent just that: who listens for others of his name hears himself.

        Of all its sessions, not of this one alone: what is retained comes back after a reconnect.
        """
        return payload in self._sent

    def send(self) -> None:
        """Send what waits, where there is a session: before the loop does anything else."""
        while self._client is not None and len(self._on_the_way) < SENT_MAX:
            waiting = self._outbox.next(self._on_the_way)
            if waiting is None:
                return
            try:
                sealed = self._encoder.encode(waiting.message, self._clock.now())
            except WireError as refused:
                self._drops.count(kind_of(waiting.message), refused.reason, self._node, refused)
                self._outbox.done(waiting)
                continue
            self._sent.append(sealed.payload)
            publish = self._publish(self._client, sealed, waiting)
            self._on_the_way[waiting] = asyncio.create_task(publish, name="mqtt-publish")

    async def _publish(self, client: aiomqtt.Client, sealed: Sealed, waiting: Waiting) -> None:
        topic, payload, retain = sealed.topic, sealed.payload, sealed.retain
        try:
            await answered(client.publish(topic, payload, qos=1, retain=retain, timeout=math.inf))
        except aiomqtt.MqttError as error:
            if self._broken is not None and not self._broken.done():
                self._broken.set_result(error)
            return
        self._outbox.done(waiting)
        self._on_the_way.pop(waiting, None)
        self.send()


async def answered(request: Coroutine[Any, Any, T]) -> T:
    """Return what the broker answers in time. aiomqtt's own timeouts can lose a cancellation (wait_for)."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return await request
    except TimeoutError:
        raise aiomqtt.MqttError(NO_ANSWER) from None
