#!/usr/bin/env bash
# Mutates the core in DIR (made anew where the tests have changed) and tells what is left: `run.sh DIR [PATTERN...]`.
set -eu
here=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$1"
cd "$1"
shift
# The tool looks for code in src, and works in a copy of all that it finds here.
ln -sfn "$here/daemon" src
ln -sfn "$here/tests" tests
ln -sfn "$here/docs" docs
ln -sfn "$here/tests/mutation/pyproject.toml" pyproject.toml
export PYTHONPATH="$PWD/tests" PYTHONHASHSEED=0
if ! [ -e costs.json ]; then
    echo "sparkd: measuring the tests (once; remove $PWD to begin anew)"
    pytest -q tests/core tests/sim -p mutation.deciding -p no:cacheprovider
fi
python -m mutation.run run --max-children "${JOBS:-$(nproc)}" "$@"
python -m mutation.tell
