"""The arguments of `sparkctl install`, `uninstall`, `init` and `join`. Imports nothing that is slow."""

from __future__ import annotations

import argparse
from typing import Any

COMMANDS = ("install", "uninstall", "init", "join")
ROOT_HELP = "the folder of a system that does not run: an image, a container"


def add_setup(commands: Any) -> None:
    """Add the four commands to the subparsers of sparkctl."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--root", default="/", metavar="DIR", help=ROOT_HELP)
    common.add_argument("--dry-run", action="store_true", help="only print what would be done")
    engine = argparse.ArgumentParser(add_help=False)
    engine.add_argument(
        "--engine-user",
        metavar="NAME",
        help="who runs Ray and vLLM, and must be there already (default: as before, at first sparkd-engine)",
    )
    engine.add_argument("--node", metavar="NAME", help="this node's name, where it is not its hostname")
    install = commands.add_parser(
        "install", parents=[common, engine], help="put units, users and rules in place (root)"
    )
    install.description = (
        "Put in place what systemd needs to run sparkd, as often as you like: what is there already is "
        "left alone, a "
        "configuration that you changed is kept, with the new default beside it as .new. Restarts sparkd "
        "where it "
        "changed, and never the engine. Exit status: 0 done, 1 refused (nothing was changed), 2 a step "
        "failed."
    )
    uninstall = commands.add_parser("uninstall", parents=[common], help="take them away again (root)")
    uninstall.add_argument("--purge", action="store_true", help="configuration, keys, state and history, too")
    _add_init(commands.add_parser("init", parents=[common], help="set up a cluster, on its head (root)"))
    _add_join(
        commands.add_parser("join", parents=[common, engine], help="set up a worker, with the line of init")
    )


def _add_init(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Write a commented configuration and a cluster key on the head, and print one line for each "
        "worker. Where a "
        "configuration is there already, it is kept, and the lines are made from it."
    )
    parser.add_argument(
        "--worker",
        action="append",
        default=[],
        metavar="NAME[=ADDRESS]",
        help="a worker's hostname; repeatable",
    )
    parser.add_argument("--model", metavar="DIR", help="folder of the weights, the same on every node")
    parser.add_argument(
        "--cluster", default="sparks", metavar="NAME", help="name of the cluster (default sparks)"
    )
    parser.add_argument("--address", metavar="IP", help="this machine's address on the fabric")
    parser.add_argument("--interface", metavar="NAME", help="its interface; with --root both must be said")
    parser.add_argument(
        "--engine-path", metavar="DIR", help="where the program vllm is (and ray, where it is used)"
    )
    parser.add_argument(
        "--broker",
        choices=["embedded", "mosquitto"],
        default="embedded",
        help="mosquitto: set it up on this machine, with an account for each node",
    )
    parser.add_argument(
        "--tls",
        action="store_true",
        help="the broker speaks TLS, with certificates that are made here, or with these three files:",
    )
    parser.add_argument("--tls-ca", metavar="FILE", help="the authority that the nodes shall trust (PEM)")
    parser.add_argument("--tls-cert", metavar="FILE", help="the broker's certificate, for the head's address")
    parser.add_argument("--tls-key", metavar="FILE", help="its key, without a passphrase")
    parser.add_argument("--force", action="store_true", help="write the configuration anew; the key stays")


def _add_join(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Set this machine up as a worker: configuration, cluster key, the broker's password, then what "
        "`install` does. "
        "The token holds them all: whoever has it can speak as a node of the cluster."
    )
    parser.add_argument(
        "token", metavar="TOKEN", help="as `sparkctl init` printed it; - = standard input; @FILE"
    )
    parser.add_argument("--force", action="store_true", help="replace a configuration that differs")
