"""`sparkd`: the daemon of one node."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sparkd.config import Loaded

AS_THE_UNITS = ("exec", "UNIT", "--config", "FILE")
"""How the units of systemd start the engine."""


def main(argv: list[str] | None = None) -> int:
    """Run `sparkd`; the exit code is 78 for what only a person can put right.

    Each command imports what it needs: a unit of the engine waits for nothing that it can do without.
    """
    words = sys.argv[1:] if argv is None else argv
    if len(words) == len(AS_THE_UNITS) and words[0] == AS_THE_UNITS[0] and words[2] == AS_THE_UNITS[2]:
        from sparkd.cli import again

        again.run(words[1], words[3], None, os.environ)
    from sparkd.cli.sparkd_options import parser

    options = parser().parse_args(words)
    if options.command == "exec":
        from sparkd.cli.execute import execute
        from sparkd.words import UnitName

        return execute(UnitName(options.unit), options.config, options.node, os.environ)
    if options.command == "files":
        from sparkd.cli.files import look

        return look(options.config, options.node, os.environ)
    from sparkd.config import EX_CONFIG, ConfigError
    from sparkd.config.load import load

    try:
        loaded = load(options.config, options.node, credentials_dir=options.credentials)
    except ConfigError as error:
        for line in error.lines:
            print(line, file=sys.stderr)
        return EX_CONFIG
    if options.command == "check":
        from sparkd.cli.seen_here import not_seen

        for note in loaded.notes:
            print(f"note: {note}")
        for line in not_seen(loaded):
            print(f"warning: {line}")
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
