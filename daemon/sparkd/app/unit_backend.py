"""What runs the engine's units on this node, and where the words of engine and kernel come from."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog

from sparkd.adapters.children import Children
from sparkd.adapters.journal import Journal
from sparkd.adapters.kernel import KernelLog
from sparkd.adapters.logfiles import LogFiles
from sparkd.config import Loaded, UnitBackend
from sparkd.config.values import AUTO_LOG, JOURNAL
from sparkd.intake.logpump import LogPump
from sparkd.ports import Emit, Units
from sparkd.words import UnitName

log = structlog.get_logger()

RAY_LOGS = ("raylet.out", "raylet.err", "gcs_server.out", "gcs_server.err")
DEVICE = "/dev/kmsg"


def chosen(backend: UnitBackend, environ: Mapping[str, str], pid: int) -> UnitBackend:
    """Return the backend that `auto` means for this process.

    systemd tells each process that it starts its own number (systemd.exec(5)), so a daemon that was started
    from a shell, which only inherits that of another, is none of its units.
    """
    if backend is not UnitBackend.AUTO:
        return backend
    return UnitBackend.SYSTEMD if environ.get("SYSTEMD_EXEC_PID") == str(pid) else UnitBackend.CHILDREN


async def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class UnitsBackend:
    """The backend of units with its sources.

    `leaves`: whether this node leaves the cluster when the daemon is asked to end, or only the daemon ends;
    children end with their daemon. Raises OSError where nobody can say. `under_systemd`: units are systemd's.
    """

    units: Units
    leaves: Callable[[], Awaitable[bool]]
    journal: Journal | None
    kernel: KernelLog | None
    under_systemd: bool = False

    def start(self) -> None:
        """Begin to read what does not wait for a unit."""
        if self.journal is not None:
            self.journal.start()
        if self.kernel is not None:
            self.kernel.start()

    async def close(self) -> None:
        """Release resources; no unit is ended."""
        if self.kernel is not None:
            await self.kernel.close()
        await self.units.close()


def backend_of(loaded: Loaded, pump: LogPump, emit: Emit) -> UnitsBackend:
    """Return the backend; *pump* gets its sources."""
    kind = chosen(loaded.units, os.environ, os.getpid())
    log.info("units", backend=kind)
    if kind is UnitBackend.SYSTEMD:
        return _systemd(loaded, pump, emit)
    log_dir = Path(loaded.paths.log_dir)
    pump.sources = (LogFiles(log_dir, pump.feed, further=_ray_logs(loaded)),)
    units = Children(loaded.cluster, loaded.node.name, log_dir, emit)
    journal = None
    if loaded.paths.kernel_log == JOURNAL:
        journal = Journal(pump.feed, {}, _cursor(loaded))
        pump.sources = (journal, *pump.sources)
    return UnitsBackend(units, _always, journal, _kernel(loaded, pump, DEVICE))


def _systemd(loaded: Loaded, pump: LogPump, emit: Emit) -> UnitsBackend:
    """The library of the bus is loaded only where it is used."""
    from sparkd.adapters.services import service
    from sparkd.adapters.systemd import Systemd

    units = Systemd(Path(loaded.paths.run_dir), emit)
    names = {unit: service(unit) for unit in UnitName}
    kernel = loaded.paths.kernel_log in {AUTO_LOG, JOURNAL}
    journal = Journal(pump.feed, names, _cursor(loaded), kernel=kernel)
    pump.sources = (journal, LogFiles(None, pump.feed, further=_ray_logs(loaded)))
    return UnitsBackend(
        units, units.leaving, journal, None if kernel else _kernel(loaded, pump, ""), under_systemd=True
    )


def _kernel(loaded: Loaded, pump: LogPump, auto: str) -> KernelLog | None:
    """Return the kernel's records as a device or what stands in for it; None where they are the journal's."""
    path = loaded.paths.kernel_log
    if path == JOURNAL:
        return None
    kernel = KernelLog(auto if path == AUTO_LOG else path, pump.feed)
    pump.drain_host = kernel.drain
    return kernel


def _cursor(loaded: Loaded) -> Path:
    return Path(loaded.paths.state_dir) / "journal.cursor"


def _ray_logs(loaded: Loaded) -> dict[UnitName, list[str]]:
    folder = f"{loaded.engine.ray_temp_dir}/session_latest/logs"
    return {UnitName.RAY: [f"{folder}/{name}" for name in RAY_LOGS]}
