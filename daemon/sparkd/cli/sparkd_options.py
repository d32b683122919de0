"""The command line of `sparkd`."""

from __future__ import annotations

import argparse

from sparkd.words import UnitName

COMMANDS = {
    "run": "run the daemon",
    "check": "check the configuration and say what it means (exit status: 0 right, 78 wrong)",
    "files": "look at the model's files for the daemon (for sparkd-files.service)",
    "exec": "become a unit of the engine, as the daemon has ordered (for the units of systemd)",
}


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="sparkd", description="supervises one node of a served model")
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and end")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text)
        if name == "exec":
            command.add_argument("unit", choices=[unit.value for unit in UnitName])
        command.add_argument("--config", default="/etc/sparkd/sparkd.toml", metavar="FILE")
        command.add_argument("--node", metavar="NAME", help="this node's name; else the host's name")
        if name in {"exec", "files"}:
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
