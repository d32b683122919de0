"""`sparkd`: the daemon of one node."""

from __future__ import annotations

import argparse
import asyncio
import sys
from importlib.metadata import version

from sparkd.config import ConfigError, load
from sparkd.export.logs import configure


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="sparkd", description="supervises one node of a served model")
    parser.add_argument("--version", action="version", version=f"sparkd {version('sparkd')}")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (("run", "run the daemon"), ("check", "check the configuration and say what it means")):
        command = commands.add_parser(name, help=text)
        command.add_argument("--config", default="/etc/sparkd/sparkd.toml", metavar="FILE")
        command.add_argument("--node", metavar="NAME", help="this node's name; else the host's name")
        command.add_argument("--credentials", metavar="DIR", help="directory with cluster_key and others")
        command.add_argument(
            "--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"], metavar="LEVEL"
        )
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run `sparkd`; the exit code is 78 for what only a person can put right."""
    from sparkd import app

    options = _parser().parse_args(argv)
    configure(options.log_level)
    try:
        loaded = load(options.config, options.node, credentials_dir=options.credentials)
    except ConfigError as error:
        for line in error.lines:
            print(line, file=sys.stderr)
        return app.EX_CONFIG
    if options.command == "check":
        for note in loaded.notes:
            print(f"note: {note}")
        print(f"{options.config}: right for {loaded.node.name} ({loaded.node.role}) of {loaded.cluster}")
        return 0
    try:
        return asyncio.run(app.run(loaded))
    except app.AppError as error:
        print(f"sparkd: {error}", file=sys.stderr)
        return error.code


if __name__ == "__main__":
    sys.exit(main())
