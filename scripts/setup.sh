#!/usr/bin/env bash
# Prepare the virtual environment: setup.sh VENV [SPARK]
#
# Finds a Python >= 3.11 (or takes $PYTHON), creates VENV with the standard library's venv, installs the pinned
# requirements.lock and the project itself in editable mode, and makes sure that there is a Java for Spark.
# SPARK, such as 4.1, asks for the newest version of that release in place of the pinned one.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1
spark=${2:-}

fail() {
    printf 'setup: %s\n' "$@" >&2
    exit 1
}

is_recent() { # a name on PATH may be a shim that fails when run, so run it
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    local candidate
    if [ -n "${PYTHON:-}" ]; then
        is_recent "$PYTHON" || fail "PYTHON=$PYTHON is not a Python 3.11 or newer."
        echo "$PYTHON"
        return
    fi
    for candidate in python3 python3.11 python3.12 python3.13 python3.14; do
        if is_recent "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    fail "Python 3.11 or newer is needed; python3 here is: $(python3 --version 2>&1 || true)" \
        "Install one (for example: apt-get install python3 python3-venv, or https://www.python.org/downloads/)" \
        "and run 'make setup' again, or name it: make setup PYTHON=/path/to/python3.12"
}

ensure_venv_module() { # Debian ships Python without ensurepip; venv cannot work without it
    local python=$1 package
    "$python" -c 'import ensurepip, venv' 2>/dev/null && return
    package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "setup: installing $package"
        { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$package"; } >/dev/null ||
            fail "apt-get could not install $package; install it and run 'make setup' again."
    else
        fail "$python cannot create virtual environments (no ensurepip)." \
            "On Debian and Ubuntu: sudo apt-get install $package; then run 'make setup' again."
    fi
}

if ! is_recent "$venv/bin/python" || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    python=$(find_python)
    ensure_venv_module "$python"
    echo "setup: creating $venv with $("$python" --version)"
    "$python" -m venv --clear "$venv"
fi

export PIP_DISABLE_PIP_VERSION_CHECK=1
echo "setup: installing the pinned requirements (Spark alone is about 450 MB the first time)"
if [ -n "$spark" ]; then
    # py4j belongs to pyspark, which pins it.
    grep -Ev '^(pyspark|py4j)==' requirements.lock >"$venv/requirements.txt"
    "$venv/bin/python" -m pip install --quiet --requirement "$venv/requirements.txt" "pyspark==$spark.*"
else
    "$venv/bin/python" -m pip install --quiet --requirement requirements.lock
fi
# The build backend is in the lock as well, hence no isolated build environment.
"$venv/bin/python" -m pip install --quiet --no-deps --no-build-isolation --editable .
"$venv/bin/python" scripts/ensure_java.py
echo "setup: done"
