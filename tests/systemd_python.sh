#!/usr/bin/env bash
# Builds systemd-python into the environment DIR where that is possible: `systemd_python.sh DIR`. It comes as source
# only, so it is no part of the lock. Where it cannot be built, this says so and goes on: what needs it is skipped.
set -eu
venv=$1
here=$(cd "$(dirname "$0")" && pwd)
"$venv/bin/python" -c 'import systemd.journal' 2>/dev/null && exit 0
bash "$here/packages.sh" libsystemd-dev pkg-config gcc systemd-journal-remote
if ! "$venv/bin/pip" install -qq --disable-pip-version-check --no-deps --no-build-isolation --require-hashes \
    -r "$here/systemd_python.lock" 2>/dev/null; then
    echo "sparkd: systemd-python could not be built (needs libsystemd-dev, pkg-config, gcc); its tests are skipped" >&2
fi
