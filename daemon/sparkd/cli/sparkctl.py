"""`sparkctl`: the operator's program. It imports what a command needs, so that it answers at once.

Exit status: 0 = fine (for `status`: serving, and nobody is needed; for `diagnose`: nothing wrong found;
for `plan`: it fits), 1 = not so or refused, 2 = wrong usage, or what is asked (the daemon, a log, a model,
the output) cannot be used.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from sparkd.cli.setup_options import COMMANDS, add_setup

FINE, UNUSABLE, INTERRUPTED = 0, 2, 130
SOCKET = Path("/run/sparkd/sparkd.sock")
VERBS = {
    "start": "start the engine on the whole cluster",
    "stop": "stop the engine on the whole cluster",
    "pause": "watch and report, change nothing (from the next safe point on)",
    "resume": "end a pause, or try again after an escalation",
}
_UNANSWERED = "2 no sparkd answers"
EXITS = {
    "status": f"0 serving, and nobody is needed, 1 otherwise, {_UNANSWERED}",
    **dict.fromkeys(("settings", "memory", "explain"), f"0 told, {_UNANSWERED}"),
    "incidents": f"0 told, 1 there is no such incident, {_UNANSWERED}",
    "replay": "0 every decision is the same, 1 at least one differs, 2 the file cannot be used",
    **dict.fromkeys(VERBS, f"0 asked, or so already, 1 refused, and why, {_UNANSWERED}"),
}
"""Of the commands that do not tell it in their descriptions."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status."""
    options = _parsed(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal may know ASCII only
    try:
        status = _run(options)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()  # the reader (`head`, a pager) has seen enough
        return FINE
    except OSError as error:
        _drop_output()
        print(f"sparkctl: {error.strerror or error}", file=sys.stderr)
        return UNUSABLE
    except KeyboardInterrupt:
        return INTERRUPTED
    return status


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return what was asked; of an option that a command does not know its own usage is shown."""
    options, unknown = _parser().parse_known_args(arguments)
    if unknown:
        options.own_parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    return options


def _drop_output() -> None:
    """Let Python's own flush at exit not complain either."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(options: argparse.Namespace) -> int:
    if options.command == "replay":
        from sparkd.cli import replay

        return replay.run(options)
    if options.command == "diagnose":
        from sparkd.cli import diagnose

        return diagnose.run(options)
    if options.command == "signatures":
        from sparkd.cli import signatures

        return signatures.run(options)
    if options.command == "plan":
        from sparkd.cli import plan

        return plan.run(options)
    if options.command == "memory":
        from sparkd.cli import memory

        return memory.run(options)
    if options.command in COMMANDS:
        from sparkd.cli import setting_up

        return setting_up.run(options)
    from sparkd.cli import asking

    return asking.run(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="sparkctl", description="Ask and steer sparkd.")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--socket", type=Path, help=f"operator socket of a daemon (default {SOCKET})")
    where.add_argument(
        "--url", help="page of a daemon, http://ADDRESS:PORT: only for status, settings and memory"
    )
    where.add_argument("--demo", action="store_true", help="the daemon of `make demo`")
    # Accepted before and after the command; the inner one must not reset the outer one.
    parser.add_argument("--json", action="store_true", help="print JSON")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON")
    common.add_argument("--demo", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("status", parents=[common], help="what the cluster does, and whether it needs you")
    commands.add_parser("settings", parents=[common], help="memory settings: in force, asked, learned")
    memory = "the memory of every node, live: pool, floor, who holds what"
    memory_parser = commands.add_parser("memory", parents=[common], help=memory)
    memory_parser.add_argument("--once", action="store_true", help="one look (also where nobody watches)")
    explain = "what it waits for, until when, and what it would do"
    commands.add_parser("explain", parents=[common], help=explain)
    replay = commands.add_parser(
        "replay", parents=[common], help="a recorded incident's decisions, made again with this version"
    )
    replay.add_argument(
        "file", metavar="FILE", help="of `sparkctl --json incidents show N`; - = standard input"
    )
    incidents = commands.add_parser("incidents", parents=[common], help="what went wrong, and what was done")
    what = incidents.add_subparsers(dest="what", metavar="list | show N")
    what.add_parser("list", parents=[common], help="the newest incidents")
    show = what.add_parser("show", parents=[common], help="one incident: why, proof, did, then")
    show.add_argument("number", type=int, metavar="N")
    for verb, text in VERBS.items():
        commands.add_parser(verb, parents=[common], help=text)
    _add_diagnose(commands.add_parser("diagnose", parents=[common], help="the root cause in any logs"))
    signatures = commands.add_parser(
        "signatures", parents=[common], help="what diagnose and sparkd recognise"
    )
    signatures.add_argument(
        "--patterns", action="store_true", help="only the patterns, for: LC_ALL=C grep -cE -f"
    )
    _add_signature_folder(signatures)
    _add_plan(commands.add_parser("plan", parents=[common], help="what a model needs, before it is started"))
    add_setup(commands)
    for name, command in commands.choices.items():
        command.set_defaults(own_parser=command)
        if name in EXITS:
            command.epilog = f"Exit status: {EXITS[name]}."
    return parser


def _add_plan(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Size a model from its configuration and the headers of its weight files (nothing else is read): "
        "what each phase of a start needs on a node, which would fail and by how much, and the settings that "
        "fit. Needs no daemon: one that runs here tells what it measured, else what the last one kept is "
        "read. Changes nothing. Exit status: 0 it fits, 1 it does not, or vLLM would refuse, 2 nothing can "
        "be said (unknown architecture, model or configuration not readable)."
    )
    parser.add_argument(
        "model", nargs="?", metavar="MODEL_DIR", help="folder of the model (default: engine.model)"
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="what is asked (default: /etc/sparkd/sparkd.toml; with MODEL_DIR alone every key's default)",
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE",
        help="another value of a key of [settings], or of section.key (engine.tensor_parallel=1); repeatable",
    )  # fmt: skip
    parser.add_argument(
        "--node-memory", metavar="BYTES", help="of a node, or of one GPU (default: this node's)"
    )
    parser.add_argument(
        "--node-available",
        metavar="BYTES",
        help="what is free of it before the launch (default: as it is now)",
    )


def _add_diagnose(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Find the root cause in logs of vLLM, Ray, NCCL, the kernel, systemd, docker, of any node, in any "
        "mixture and wrapping. Needs no daemon. Exit status: 0 nothing wrong found, 1 a cause found (or a "
        "failure that no evidence explains), 2 no usable log, or nothing wrong found in only a part of them."
    )
    parser.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        help="a log, packed or not, a folder, an archive, - for standard input (default)",
    )
    parser.add_argument(
        "--node", action="append", default=[], metavar="NAME=FILE", help="a log of the node NAME; repeatable"
    )
    parser.add_argument(
        "--explain", action="store_true", help="every signal, and why it won or lost; what was ignored"
    )
    parser.add_argument(
        "--batch",
        nargs="?",
        const="-",
        metavar="FILE",
        help='each line {"id": …, "lines": […]} gives a line with its result (default: standard input)',
    )
    _add_signature_folder(parser)


def _add_signature_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--signatures",
        type=Path,
        metavar="DIR",
        help="folder of further signatures (default SPARKD_PATHS__SIGNATURES_DIR, /etc/sparkd/signatures.d)",
    )


if __name__ == "__main__":
    sys.exit(main())
