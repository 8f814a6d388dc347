#!/bin/sh
# Compiled loops are used from a copy: numba wants to write beside them, and the image may be read-only.
set -eu

if [ -d "${KINTSUGI_COMPILED:=/opt/numba}" ]; then
    copy="${TMPDIR:-/tmp}/kintsugi-numba-$(id -u)" # one place: a container that is started again keeps its files
    rm -rf "$copy"
    mkdir -m 700 "$copy"
    cp -R "$KINTSUGI_COMPILED/." "$copy"
    export NUMBA_CACHE_DIR="$copy"
fi
unset KINTSUGI_COMPILED
exec kintsugi "$@"
