#!/usr/bin/env bash
# Makes sure that Debian packages are there: `packages.sh PACKAGE...`. Where it may install them, it does and
# says so; where it may not, it says exactly what to type, and goes on: what needs them is skipped by name.
set -eu
missing=()
for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0
if ! command -v apt-get >/dev/null; then
    echo "sparkd: please install the equivalents of these Debian packages: ${missing[*]}" >&2
    exit 0
fi
if [ "$(id -u)" -ne 0 ]; then
    echo "sparkd: some tests need Debian packages; to run them too, type:" >&2
    echo "    sudo apt-get install --no-install-recommends ${missing[*]}" >&2
    exit 0
fi
echo "sparkd: installing Debian packages: ${missing[*]}"
# Services of these packages must not start by themselves: the tests start their own and stop them by pid.
policy=/usr/sbin/policy-rc.d
made=
if [ ! -e $policy ]; then
    printf '#!/bin/sh\nexit 101\n' > $policy && chmod +x $policy && made=1
fi
trap '[ -n "$made" ] && rm -f $policy' EXIT
export DEBIAN_FRONTEND=noninteractive
apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null 2>&1 || {
    apt-get update -qq && apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null
}
