"""`sparkd`: the daemon of one node."""

from __future__ import annotations

import argparse
import os
import sys
from importlib.metadata import version

from sparkd.adapters.notify import Notifier
from sparkd.config import EX_CONFIG, ConfigError, Loaded, load
from sparkd.words import UnitName

COMMANDS = {
    "run": "run the daemon",
    "check": "check the configuration and say what it means",
    "exec": "become a unit of the engine, as the daemon has ordered (for the units of systemd)",
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="sparkd", description="supervises one node of a served model")
    parser.add_argument("--version", action="version", version=f"sparkd {version('sparkd')}")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text)
        if name == "exec":
            command.add_argument("unit", choices=[unit.value for unit in UnitName])
        command.add_argument("--config", default="/etc/sparkd/sparkd.toml", metavar="FILE")
        command.add_argument("--node", metavar="NAME", help="this node's name; else the host's name")
        command.add_argument("--credentials", metavar="DIR", help="directory with cluster_key and others")
        command.add_argument(
            "--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"], metavar="LEVEL"
        )
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run `sparkd`; the exit code is 78 for what only a person can put right."""
    options = _parser().parse_args(argv)
    try:
        loaded = load(
            options.config,
            options.node,
            credentials_dir=options.credentials,
            secrets=options.command != "exec",
        )
    except ConfigError as error:
        for line in error.lines:
            print(line, file=sys.stderr)
        if options.command == "exec":
            Notifier.of(os.environ).status(f"refused: {error.lines[0]}")
        return EX_CONFIG
    if options.command == "exec":
        from sparkd.cli.execute import execute  # neither the daemon's imports here nor these there

        return execute(UnitName(options.unit), loaded, os.environ)
    if options.command == "check":
        for note in loaded.notes:
            print(f"note: {note}")
        print(f"{options.config}: right for {loaded.node.name} ({loaded.node.role}) of {loaded.cluster}")
        return 0
    return _run(loaded, options.log_level)


def _run(loaded: Loaded, log_level: str) -> int:
    """Run the daemon. What it imports is loaded here: a unit that starts does not wait for it."""
    import asyncio

    from sparkd import app
    from sparkd.export.logs import configure

    configure(log_level)
    try:
        return asyncio.run(app.run(loaded))
    except app.AppError as error:
        print(f"sparkd: {error}", file=sys.stderr)
        return error.code


if __name__ == "__main__":
    sys.exit(main())
