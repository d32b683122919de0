"""Who reaches whom: the way to the broker, the fabric and the management network, each way by itself."""

from __future__ import annotations

UP, DOWN = "up", "down"
FABRIC, MANAGEMENT = "fabric", "management"


class Network:
    """Cuts, counted, so that two that overlap heal one after the other."""

    __slots__ = ("_cuts",)

    def __init__(self) -> None:
        self._cuts: dict[tuple[str, str, str], int] = {}

    def cut(self, path: str, node: str, way: str, by: int = 1) -> None:
        """Cut *node* off on *path* ("mqtt", "fabric", "management"); by -1 heals."""
        for direction in (UP, DOWN) if way == "both" else (way,):
            key = (path, node, direction)
            self._cuts[key] = max(0, self._cuts.get(key, 0) + by)

    def heal(self) -> None:
        """Nothing is cut any more."""
        self._cuts.clear()

    def open(self, path: str, node: str, way: str) -> bool:
        """Return whether *node* can send (up) or receive (down) on *path*."""
        return not self._cuts or not self._cuts.get((path, node, way))

    def mqtt(self, node: str) -> bool:
        """Return whether the way to the broker is whole."""
        return self.open("mqtt", node, UP) and self.open("mqtt", node, DOWN)

    def reaches(self, path: str, sender: str, receiver: str) -> bool:
        """Return whether a packet of *sender* comes to *receiver*."""
        return self.open(path, sender, UP) and self.open(path, receiver, DOWN)

    def talks(self, path: str, one: str, other: str) -> bool:
        """Return whether a question and its answer pass."""
        return self.reaches(path, one, other) and self.reaches(path, other, one)
