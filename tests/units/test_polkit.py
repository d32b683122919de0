"""The polkit rule, in a real polkit: what the daemon may do, and that nobody else may more by it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from sparkd.setup.survey import POLKIT

RULES = Path(__file__).parents[2] / "etc" / "polkit" / "50-sparkd.rules"
BED = Path(__file__).with_name("polkit_bed.py")
PROGRAMS = ("pkcheck", "dbus-daemon", "dbus-send", "unshare", "mount")
POLKITD = next((path for path in POLKIT if Path(path).exists()), None)
NAMESPACE = ("unshare", "--mount", "--propagation", "private")
SPARKD, STRANGER = 64321, 64322
UNITS = ("sparkd-ray.service", "sparkd-serve.service", "sparkd-files.service")
VERBS = ("start", "kill", "ref")
ALLOWED = [(SPARKD, unit, verb) for unit in UNITS for verb in VERBS]
REFUSED = [
    *(
        (SPARKD, unit, verb)
        for unit in UNITS
        for verb in ("stop", "restart", "reload", "set-property", "freeze")
    ),
    *((SPARKD, unit, "stop") for unit in ("sparkd.service", "sparkd-guard.service", "ssh.service")),
    *((SPARKD, unit, "start") for unit in ("xsparkd-ray.service", "sparkd-ray.service.x", "sparkd-ray")),
    (SPARKD, "", ""),
    *((STRANGER, unit, verb) for unit in UNITS for verb in VERBS),
]


@pytest.mark.process
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for a mount namespace")
@pytest.mark.skipif(
    POLKITD is None or not all(shutil.which(name) for name in PROGRAMS),
    reason=f"needs polkitd, {', '.join(PROGRAMS)}",
)
def test_the_daemon_may_do_what_it_needs_and_nothing_else() -> None:
    folder = (
        Path(tempfile.gettempdir()) / f"sparkd-polkit-{os.getpid()}"
    )  # pytest's own folders are closed to polkit's user
    folder.mkdir(mode=0o755)
    try:
        done = subprocess.run(
            [*NAMESPACE, sys.executable, str(BED), str(folder), str(RULES), str(POLKITD)],
            input=json.dumps([*ALLOWED, *REFUSED]),
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
    finally:
        shutil.rmtree(folder)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)

    assert [question for question, yes in zip([*ALLOWED, *REFUSED], answers, strict=True) if yes] == ALLOWED
