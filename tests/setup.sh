#!/usr/bin/env bash
# Makes the virtual environment DIR from requirements.lock and installs the project into it: `setup.sh DIR`.
set -eu
venv=$1
here=$(cd "$(dirname "$0")/.." && pwd)
cd "$here"

find_python() {
    for candidate in "${PYTHON:-python3}" python3.11 python3.12 python3.13 python3; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "sparkd: needs Python 3.11 or newer; install it and say: make PYTHON=/path/to/python3.11 ..." >&2
    return 1
}

python=$(find_python)
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    bash tests/packages.sh python3-venv
    "$python" -c 'import ensurepip, venv' 2>/dev/null || {
        echo "sparkd: this Python cannot make virtual environments. Type: sudo apt-get install python3-venv" >&2
        exit 1
    }
fi
echo "sparkd: setting up $venv (once)"
rm -f "$venv/.complete"
"$python" -m venv "$venv"
if ! "$venv/bin/pip" install -qq --disable-pip-version-check --require-hashes -r requirements.lock; then
    echo "sparkd: the locked packages could not be installed; is a package index reachable? (pip config list)" >&2
    exit 1
fi
"$venv/bin/pip" install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
touch "$venv/.complete"
