"""The broker: sessions, retained messages, wills; it loses, doubles, delays and reorders what it carries."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from sim.chaos.network import DOWN
from sim.chaos.post import LEVELS, Letter

if TYPE_CHECKING:
    from sim.chaos.daemon import Daemon
    from sim.chaos.world import World

SILENCE_S = 7.5
"""Half again the keepalive of 5 s: then the broker publishes the will."""
STRAGGLE_S = (1.0, 40.0)
TAPE_MAX = 60


class Session:
    """One connection of one daemon."""

    __slots__ = ("daemon", "held", "last_s", "open", "will")

    def __init__(self, daemon: Daemon, will: Letter) -> None:
        self.daemon, self.will = daemon, will
        self.open = True
        self.held: list[tuple[Letter, bool]] = []
        self.last_s: dict[str, float] = {}


class Broker:
    """Carries letters between sessions."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.up = True
        self.retained: dict[str, Letter] = {}
        self.snapshots: deque[dict[str, Letter]] = deque(maxlen=6)
        self.sessions: list[Session] = []
        self.late: dict[tuple[str, str], float] = {}
        self.lagging: dict[str, int] = {}
        self.tape: deque[Letter] = deque(maxlen=TAPE_MAX)

    def reachable(self, daemon: Daemon) -> bool:
        """Return whether *daemon* could connect now."""
        world = self.world
        if not self.up or not world.net.mqtt(daemon.name):
            return False
        return not world.plan.broker_at_head or world.machines[world.head].on

    def connect(self, daemon: Daemon, will: Letter) -> Session:
        """Open a session and hand it everything retained."""
        session = Session(daemon, will)
        self.sessions.append(session)
        for letter in list(self.retained.values()):
            self._send(session, letter, retained=True)
        return session

    def publish(self, sender: Daemon, letter: Letter) -> None:
        """Carry *letter* to every other session."""
        if letter.kind in LEVELS:
            self.retained[letter.place] = letter
            if len(self.tape) % 20 == 0:
                self.snapshots.append(dict(self.retained))
        self.tape.append(letter)
        noise, rng = self.world.plan.noise, self.world.luck
        for session in self.sessions:
            if session.daemon is sender or (noise.loss and rng.random() < noise.loss):
                continue
            self._send(session, letter, retained=False)
            if noise.twice and rng.random() < noise.twice:
                self._send(session, letter, retained=False)

    def _send(self, session: Session, letter: Letter, *, retained: bool) -> None:
        world = self.world
        at_s = world.now + world.plan.noise.delay_s * (0.2 + world.luck.random())
        late_s = self.late.get((letter.instance, session.daemon.name), 0.0)
        if late_s > world.now and not retained:
            at_s = late_s + world.luck.random()
        elif world.plan.noise.straggle and world.luck.random() < world.plan.noise.straggle:
            at_s += world.luck.uniform(*STRAGGLE_S)
        elif world.plan.noise.ordered:
            at_s = max(at_s, session.last_s.get(letter.node, 0.0))
            session.last_s[letter.node] = at_s
        world.at(at_s - world.now, self._arrive, session, letter, retained)

    def _arrive(self, session: Session, letter: Letter, retained: bool) -> None:
        if not session.open:
            return
        name = session.daemon.name
        if not self.lagging.get(name) and self.world.net.open("mqtt", name, DOWN):
            session.daemon.receive(letter, retained)
        else:
            session.held.append((letter, retained))

    def flush(self, session: Session) -> None:
        """What was held up on the way arrives: the way is whole again before anybody gave up."""
        held, session.held = session.held, []
        for letter, retained in held:
            self.world.at(0.01, self._arrive, session, letter, retained)

    def catch_up(self, node: str) -> None:
        """One lag ends; what waited comes, each sender's words in their order, the senders in any."""
        left = self.lagging[node] = max(0, self.lagging.get(node, 0) - 1)
        if not left:
            self.hurry(node)

    def hurry(self, node: str) -> None:
        """Nothing waits for *node* any more."""
        self.lagging.pop(node, None)
        for session in list(self.sessions):
            if session.daemon.name != node or not self.world.net.mqtt(node):
                continue
            senders = list(dict.fromkeys(letter.instance for letter, _ in session.held))
            self.world.luck.shuffle(senders)
            session.held.sort(key=lambda held: senders.index(held[0].instance))
            self.flush(session)

    def drop(self, session: Session, *, will: bool) -> None:
        """Close a session; where it broke its will is published."""
        if not session.open:
            return
        session.open = False
        self.sessions.remove(session)
        if will and self.up:
            self.publish(session.daemon, session.will)

    def replay(self, session: Session) -> None:
        """Say an old message again, as if it were new."""
        if self.tape:
            self._send(session, self.world.luck.choice(self.tape), retained=False)

    def echo(self, node: str, letter: Letter) -> None:
        """Say an old message again to whoever lives on *node* now."""
        for session in list(self.sessions):
            if session.daemon.name == node:
                self._send(session, letter, retained=False)

    def stop(self) -> None:
        """Go down: every connection is reset."""
        self.up = False
        for session in list(self.sessions):
            self.drop(session, will=False)
            session.daemon.session_lost(session, "connection reset")

    def start(self, retained: str) -> None:
        """Come back, with what was retained, with some older state of it, or with nothing."""
        self.up = True
        if retained == "lost":
            self.retained = {}
        elif retained == "rolled back" and self.snapshots:
            self.retained = dict(self.world.luck.choice(self.snapshots))
