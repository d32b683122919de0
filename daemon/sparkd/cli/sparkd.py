"""`sparkd`: the daemon of one node."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from sparkd.words import UnitName

if TYPE_CHECKING:
    from sparkd.config import Loaded

COMMANDS = {
    "run": "run the daemon",
    "check": "check the configuration and say what it means",
    "exec": "become a unit of the engine, as the daemon has ordered (for the units of systemd)",
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="sparkd", description="supervises one node of a served model")
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and end")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text)
        if name == "exec":
            command.add_argument("unit", choices=[unit.value for unit in UnitName])
        command.add_argument("--config", default="/etc/sparkd/sparkd.toml", metavar="FILE")
        command.add_argument("--node", metavar="NAME", help="this node's name; else the host's name")
        if name == "exec":
            continue
        command.add_argument("--credentials", metavar="DIR", help="directory with cluster_key and others")
        command.add_argument(
            "--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"], metavar="LEVEL"
        )
    return parser


class _Version(argparse.Action):
    """Looks the version up only where it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"sparkd {version('sparkd')}")
        parser.exit()


def main(argv: list[str] | None = None) -> int:
    """Run `sparkd`; the exit code is 78 for what only a person can put right.

    Each command imports what it needs: a unit of the engine does not wait for the daemon's libraries.
    """
    options = _parser().parse_args(argv)
    if options.command == "exec":
        from sparkd.cli.execute import execute

        return execute(UnitName(options.unit), options.config, options.node, os.environ)
    from sparkd.config import EX_CONFIG, ConfigError
    from sparkd.config.load import load

    try:
        loaded = load(options.config, options.node, credentials_dir=options.credentials)
    except ConfigError as error:
        for line in error.lines:
            print(line, file=sys.stderr)
        return EX_CONFIG
    if options.command == "check":
        for note in loaded.notes:
            print(f"note: {note}")
        print(f"{options.config}: right for {loaded.node.name} ({loaded.node.role}) of {loaded.cluster}")
        return 0
    return _run(loaded, options.log_level)


def _run(loaded: Loaded, log_level: str) -> int:
    """Run the daemon."""
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
