#!/usr/bin/env bash
# Find a Chromium for the tests of the page, or install Debian's: ensure_browser.sh FILE writes its path into FILE.
set -euo pipefail
file=$1

find_browser() {
    local candidate
    for candidate in "${BROWSER:-}" chromium chromium-browser google-chrome; do
        if [ -n "$candidate" ] && command -v "$candidate" >/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

if ! find_browser >"$file"; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "browser: installing chromium"
        { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
            chromium fonts-dejavu-core; } >/dev/null
    fi
    find_browser >"$file" || {
        rm -f "$file"
        echo "browser: a Chromium is needed for these tests (on Debian and Ubuntu: sudo apt-get install chromium)," >&2
        echo "or name one: make test-browser BROWSER=/path/to/chrome" >&2
        exit 1
    }
fi
