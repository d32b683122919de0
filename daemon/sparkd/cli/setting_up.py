"""`sparkctl install`, `uninstall`, `init`, `join`: read the host, plan, say it, do it.

Exit status: 0 = done, or nothing to do; 1 = refused, nothing was changed; 2 = a step failed, say it again.
"""

from __future__ import annotations

import argparse
import getpass
import os
import secrets
import shlex
import sys
import tomllib
from pathlib import Path

from sparkd.cli.layout import safe
from sparkd.setup import join, probe, tls, token
from sparkd.setup.apply import StepError, apply
from sparkd.setup.broker import Certificates
from sparkd.setup.head import Fresh, Head, InitError, Wishes, plan_init, with_refusals
from sparkd.setup.host import Host
from sparkd.setup.install import plan_install
from sparkd.setup.network import Network, NetworkError, own_link
from sparkd.setup.package import Package, read_package
from sparkd.setup.places import CONFIG_DIR, OPTIONAL_CREDENTIALS
from sparkd.setup.steps import Plan, fact_lines, plan_lines, step_lines, warning_lines
from sparkd.setup.survey import survey
from sparkd.setup.uninstall import plan_uninstall

DONE, REFUSED, FAILED = 0, 1, 2
TOKEN_MAX = 1 << 20
# What install wants of the system, beside systemd itself.
DEBIAN = "polkitd python3-venv python3-systemd"
WHAT_IT_IS = (
    "The line installs this sparkd there and brings the configuration, the cluster key and, where the",
    "broker has accounts, that node's password. It is compressed, not encrypted: whoever has it can speak",
    "as a node of this cluster until the key is changed on every node. Pass it on over ssh, not by mail or",
    "chat. No list of processes shows it, and the blank at its front keeps it out of bash's history.",
)


def run(options: argparse.Namespace) -> int:
    """Run one of the four commands and return the exit status."""
    if options.command == "join" and not options.token.startswith(("-", "@")):
        _leave_the_process_list(options.token)
    root = str(Path(options.root).resolve())
    if not Path(root).is_dir():
        print(f"sparkctl: --root {options.root}: no such folder", file=sys.stderr)
        return FAILED
    package = read_package()
    try:
        return _COMMANDS[options.command](options, package, root)
    except (InitError, NetworkError, token.TokenError) as error:
        for line in str(error).splitlines():
            print(f"✗ {safe(line)}", file=sys.stderr)
        return REFUSED


def _install(options: argparse.Namespace, package: Package, root: str) -> int:
    host = survey(package, root, options.node)
    return _carry_out(plan_install(package, host, options.engine_user, root), options, root)


def _uninstall(options: argparse.Namespace, package: Package, root: str) -> int:
    return _carry_out(
        plan_uninstall(package, survey(package, root), purge=options.purge, root=root), options, root
    )


def _init(options: argparse.Namespace, package: Package, root: str) -> int:
    host = survey(package, root)
    names = [wanted.partition("=")[0] for wanted in options.worker]
    net = probe.network(names) if host.live else Network()
    wishes = Wishes(
        cluster=options.cluster,
        workers=tuple(options.worker),
        model=options.model,
        models=() if options.model or root != "/" else probe.models(),
        address=options.address,
        interface=options.interface,
        mosquitto=options.broker == "mosquitto",
        tls=_certificates(options, net),
        force=options.force,
    )
    count = len(wishes.workers) + 2
    programs = probe.programs(options.engine_path)
    fresh = Fresh(secrets.token_hex(32), tuple(secrets.token_hex(16) for _ in range(count)))
    head = plan_init(package, host, net, programs=programs, wishes=wishes, fresh=fresh, root=root)
    node = host.node.name if host.node is not None else host.hostname
    checked = probe.tried(head.text, node, {**_credentials(host), "cluster_key": head.key})
    if isinstance(checked, tuple):
        head = with_refusals(head, checked)
    status = _carry_out(head.plan, options, root)
    if status == DONE and not options.dry_run:
        print("\n".join(join_lines(head, package, host.bin_dir)))
    return status


def _certificates(options: argparse.Namespace, net: Network) -> Certificates | None:
    """Return what the broker speaks TLS with, None = it does not. Raises InitError, NetworkError."""
    files = (options.tls_ca, options.tls_cert, options.tls_key)
    if not options.tls and not any(files):
        return None
    if options.broker != "mosquitto":
        raise InitError("--tls: the embedded broker speaks no TLS: say --broker mosquitto, too")
    if any(files) and not all(files):
        raise InitError("--tls-ca, --tls-cert, --tls-key belong together: name all three files, or say --tls")
    address = own_link(net, options.address, options.interface).address
    try:
        return tls.given(*files, address) if all(files) else tls.made(address)
    except tls.TlsError as error:
        raise InitError(*str(error).splitlines()) from error


def _credentials(host: Host) -> dict[str, str]:
    paths = {name: f"{CONFIG_DIR}/{name}" for name in OPTIONAL_CREDENTIALS}
    return {name: host.files[path].decode() for name, path in paths.items() if path in host.files}


def join_lines(head: Head, package: Package, bin_dir: str) -> list[str]:
    """Return what to type on each worker. The token goes through a pipe from the shell itself."""
    first = _package_line(package, bin_dir, tomllib.loads(head.text)["node"][0]["address"])
    lines = []
    for worker, word in head.tokens.items():
        join_it = f"printf %s {word} | sudo {shlex.quote(bin_dir)}/sparkctl join -"
        lines += ["", f"On {worker}, paste this one line into a shell:", "", f" {first} && {join_it}"]
    return [*lines, "", *WHAT_IT_IS] if lines else []


def _package_line(package: Package, bin_dir: str, address: str) -> str:
    """Return how a worker gets the same package: from where pip had it, or from this machine."""
    folder = shlex.quote(str(Path(bin_dir).parent))
    if package.requirement:
        steps = [f"apt-get install -y -q {DEBIAN}", f"python3 -m venv --system-site-packages {folder}"]
        steps += [f"{folder}/bin/pip install -q {shlex.quote(package.requirement)}"]
    else:
        who = os.environ.get("SUDO_USER") or getpass.getuser()
        steps = [f"apt-get install -y -q {DEBIAN} rsync", f"rsync -a {who}@{address}:{folder}/ {folder}/"]
    return f"sudo sh -c {shlex.quote(' && '.join(steps))}"


def _join(options: argparse.Namespace, package: Package, root: str) -> int:
    word = token.decode(_token_text(options.token))
    host = survey(package, root, options.node or word.node)
    here = join.local(word, probe.network() if host.live else Network(), live=host.live)
    try:
        text = join.text_of(package, here)
    except ValueError as error:
        raise token.TokenError(
            f"the head's configuration: {error}; is the head's sparkd {word.version}?"
        ) from error
    checked = probe.tried(text, word.node, {**_credentials(host), **word.secrets})
    plan = join.plan_join(
        package, host, word, here, checked, engine_user=options.engine_user, root=root, force=options.force
    )
    return _carry_out(plan, options, root)


def _token_text(given: str) -> str:
    if given.startswith("@"):
        try:
            with Path(given[1:]).open(encoding="utf-8", errors="replace") as file:
                return file.read(TOKEN_MAX)
        except OSError as error:
            raise token.TokenError(f"{given[1:]}: {error.strerror}; it should hold a token") from error
    if given != "-":
        return given
    if sys.stdin is not None and sys.stdin.isatty():
        return getpass.getpass("token (not shown): ")
    return sys.stdin.read(TOKEN_MAX)


def _leave_the_process_list(word: str) -> None:
    """Start this program anew with the token behind standard input: arguments are for everybody to see."""
    if word not in sys.argv:
        return
    held = os.memfd_create("token")
    os.write(held, word.encode())
    os.lseek(held, 0, os.SEEK_SET)
    os.dup2(held, 0)
    again = "import sys; from sparkd.cli.sparkctl import main; sys.exit(main())"
    arguments = ["-" if argument == word else argument for argument in sys.argv[1:]]
    os.execv(sys.executable, [sys.executable, "-P", "-c", again, *arguments])  # noqa: S606 - this program itself


def _carry_out(plan: Plan, options: argparse.Namespace, root: str) -> int:
    """Say the plan, do it, say what there is to say of each step."""
    if plan.refusals or options.dry_run:
        print("\n".join(plan_lines(plan)))
        print("nothing was changed" + (": refused" if plan.refusals else " (--dry-run)"))
        return REFUSED if plan.refusals else DONE
    print("\n".join([plan.title, *fact_lines(plan)]))
    try:
        for line, (_, said) in zip(step_lines(plan.steps), apply(plan.steps, root), strict=False):
            print(line + (f"  ! {safe(said)}" if said else ""))
    except StepError as error:
        print(f"✗ {safe(str(error))}", file=sys.stderr)
        return FAILED
    print("\n".join([*warning_lines(plan), *(["nothing was left to do"] if plan.idle else []), *plan.after]))
    return DONE


_COMMANDS = {"install": _install, "uninstall": _uninstall, "init": _init, "join": _join}
