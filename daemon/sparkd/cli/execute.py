"""`sparkd exec UNIT`: what systemd starts. Becomes the engine, or refuses with 78 and says why.

Runs as the engine's user. The daemon's order (`adapters.launch`) names a stamp and settings; what is
executed comes from the root-owned configuration alone. The order is refused where it is missing, was run
before, or amounts to something else here than the daemon has told the cluster (the configuration or sparkd
itself has changed since). Every start of the engine waits for this: the configuration's schema is asked only
where the file as it stands does not amount to what was ordered.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from sparkd.adapters.launch import Launch, LaunchError, read_launch, read_ran, text_of, write_ran
from sparkd.adapters.notify import Notifier
from sparkd.cli import again
from sparkd.config.refusal import EX_CONFIG, ConfigError
from sparkd.config.served import Served, read_served
from sparkd.engines.digest import node_digest
from sparkd.engines.member import render_unit
from sparkd.engines.model import Rendered
from sparkd.words import UnitName


class RefusedError(Exception):
    """The unit does not run; the text says what to do."""


def execute(unit: UnitName, path: str, node: str | None, environ: Mapping[str, str]) -> int:
    """Become the unit's process; return only where that is refused, with the exit code.

    Args:
        unit: the unit.
        path: the configuration.
        node: this node's name, as `config.load` takes it.
        environ: the process's variables.
    """
    try:
        launch, rendered, run_dir = _ordered(unit, path, node, environ)
        program = _program(rendered)
        write_ran(run_dir, unit, launch.stamp, environ.get("INVOCATION_ID", ""))
        noted = again.Noted(program, rendered.argv, rendered.env, rendered.warnings)
        again.remember(text_of(launch), noted, path, node, environ)
        again.become(unit, (launch.stamp.epoch, launch.stamp.generation), noted, environ)
    except (RefusedError, ConfigError, LaunchError, OSError, ValueError) as error:
        Notifier.of(environ).status(f"refused: {error}")
        print(f"sparkd exec {unit}: refused: {error}", file=sys.stderr)
        return EX_CONFIG


def _ordered(
    unit: UnitName, path: str, node: str | None, environ: Mapping[str, str]
) -> tuple[Launch, Rendered, Path]:
    """Return the order, what it amounts to, and the run directory."""
    served = read_served(path, node, environ)
    if served is not None:
        launch = _order(unit, Path(served.run_dir))
        rendered = _rendered(launch, served)
        if node_digest((rendered,)) == launch.digest:
            return launch, rendered, Path(served.run_dir)
    from sparkd.config.load import load_served  # takes longer than all the rest

    served = load_served(path, node, environ)
    launch = _order(unit, Path(served.run_dir))
    rendered = _rendered(launch, served)
    if (digest := node_digest((rendered,))) != launch.digest:
        raise RefusedError(
            f"the command is not the one that was ordered (digest {digest[:12]}, ordered "
            f"{launch.digest[:12]}): the configuration or sparkd itself has changed since; have the daemon "
            "read it again: systemctl restart sparkd"
        )
    return launch, rendered, Path(served.run_dir)


def _order(unit: UnitName, run_dir: Path) -> Launch:
    launch, (ran, _) = read_launch(run_dir, unit), read_ran(run_dir, unit)
    if launch is None:
        raise RefusedError("there is no order to run; sparkd starts this unit itself: sparkctl start")
    if launch.stamp.generation <= ran.generation:
        raise RefusedError(
            f"generation {launch.stamp.generation} (epoch {launch.stamp.epoch}) has been run before; a new "
            "one is started by sparkd: sparkctl start"
        )
    return launch


def _rendered(launch: Launch, served: Served) -> Rendered:
    return render_unit(
        launch.unit,
        served.engine,
        served.cluster,
        served.node,
        served.nodes,
        settings=launch.settings,
        stamp=launch.stamp,
    )


def _program(rendered: Rendered) -> str:
    """Return the program's path, looked up in the engine's own PATH."""
    name, env = rendered.argv[0], dict(rendered.env)
    found = shutil.which(name, path=env.get("PATH", os.defpath))
    if found is None:
        raise RefusedError(f"{name} is no program that this user can run, in {env.get('PATH', os.defpath)}")
    return found
