"""`sparkd-guard`, or `python -m sparkd.guard`."""

from __future__ import annotations

import os
import sys

from sparkd.guard.settings import EX_CONFIG, FILE, KEYS, Refused, load
from sparkd.guard.telling import StatusFile, gib, say
from sparkd.guard.watch import Watch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparkd.guard.settings import Settings

HELP = f"""usage: sparkd-guard [--config FILE] [--check] [--KEY VALUE]...

Guards this node's memory: ends the engine's processes before the node stops answering. Without --config it
reads {FILE}, where that is. Every key of the file is also an option and, as SPARKD_GUARD_KEY, a variable:
"""


def _help() -> int:
    sys.stdout.write(
        HELP
        + "".join(f"  --{key:<18} {said[2]} (default {said[0] or 'empty'})\n" for key, said in KEYS.items())
    )
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; return the exit code: 0 = stopped, 78 = refused, a person has to change something."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if "--help" in words or "-h" in words:
        return _help()
    check = "--check" in words
    try:
        settings = load([word for word in words if word != "--check"], os.environ)
    except Refused as refused:
        say(f"refused: {refused}")
        return EX_CONFIG
    if check:
        sys.stdout.write(
            f"sparkd-guard: mode {settings.mode}, floor {gib(settings.floor)}: this can be used\n"
        )
        return 0
    return _run(settings)


def _run(settings: Settings) -> int:
    try:
        status = StatusFile(settings.status)
    except BlockingIOError:
        say(f"refused: another guard holds {settings.status}; one a node: stop it, or set status")
        return EX_CONFIG
    except OSError as error:
        say(f"refused: status = {settings.status}: {error.strerror}; its directory must be writable by root")
        return EX_CONFIG
    watch = Watch(settings, status)
    watch.listen()
    kept = watch.prepare()
    watch.is_up()
    say(f"guards {watch.scope.path or settings.tree}: {settings.mode}, floor {gib(settings.floor)}")
    watch.run()
    kept.clear()
    say("stopped: the memory of this node is no longer guarded")
    return 0


if __name__ == "__main__":
    sys.exit(main())
