"""Asks a real polkit what a user may do: `polkit_bed.py FOLDER RULES POLKITD`, in a mount namespace.

The namespace hides the machine's own rules and adds a user `sparkd`; polkit speaks over a bus of its own.
Questions come as JSON on standard input, [[user's number, unit, verb], ...], answers go out, [true, ...].
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ACTION = "org.freedesktop.systemd1.manage-units"
DEADLINE_S = 20.0
BUS = """\
<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
  "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>system</type><listen>unix:path={socket}</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*"/><allow receive_sender="*"/>
<allow own="*"/><allow user="*"/></policy></busconfig>
"""


def bind(source: Path, target: str) -> None:
    """Show *source* at *target*, for this namespace only."""
    subprocess.run(["mount", "--bind", str(source), target], check=True)


@contextlib.contextmanager
def running(*argv: str, **more: object) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, **more)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


def wait_until(ready, what: str) -> None:  # type: ignore[no-untyped-def]
    end = time.monotonic() + DEADLINE_S
    while not ready():
        if time.monotonic() > end:
            raise TimeoutError(what)
        time.sleep(0.02)


def may(pid: int, unit: str, verb: str) -> bool:
    """Whether polkit says yes to a process, without asking anybody."""
    details = ["--detail", "unit", unit, "--detail", "verb", verb] if unit else []
    asked = ["pkcheck", "--action-id", ACTION, "--process", str(pid), *details]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    if done.returncode not in {0, 1, 2}:
        raise RuntimeError(done.stderr)
    return done.returncode == 0


def main() -> None:
    folder, rules, polkitd = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    for name in ("rules", "none"):
        (folder / name).mkdir()
    (folder / "rules" / rules.name).write_bytes(rules.read_bytes())
    accounts = folder / "passwd"
    accounts.write_text(Path("/etc/passwd").read_text() + "\nsparkd:x:64321:64321::/:/usr/sbin/nologin\n")
    bind(folder / "rules", "/etc/polkit-1/rules.d")
    bind(folder / "none", "/usr/share/polkit-1/rules.d")
    bind(accounts, "/etc/passwd")
    socket = folder / "bus"
    (folder / "bus.conf").write_text(BUS.format(socket=socket))
    os.environ["DBUS_SYSTEM_BUS_ADDRESS"] = f"unix:path={socket}"
    questions = json.load(sys.stdin)
    with contextlib.ExitStack() as stack:
        stack.enter_context(running("dbus-daemon", f"--config-file={folder / 'bus.conf'}", "--nofork"))
        wait_until(socket.exists, "the bus did not come up")
        stack.enter_context(running(polkitd, "--no-debug"))
        asked = [
            "dbus-send",
            "--system",
            "--dest=org.freedesktop.DBus",
            "--print-reply",
            "/",
            NAME_HAS_OWNER,
            POLKIT,
        ]
        wait_until(
            lambda: b"true" in subprocess.run(asked, capture_output=True, check=False).stdout,
            "no polkit came up",
        )
        pids = {
            user: stack.enter_context(running("sleep", "60", user=user, group=user, extra_groups=[])).pid
            for user in {question[0] for question in questions}
        }
        print(json.dumps([may(pids[user], unit, verb) for user, unit, verb in questions]))


NAME_HAS_OWNER, POLKIT = "org.freedesktop.DBus.NameHasOwner", "string:org.freedesktop.PolicyKit1"

if __name__ == "__main__":
    main()
