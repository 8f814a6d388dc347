#!/bin/sh
# Compiled loops are used from a copy: numba wants to write beside them, and the image may be read-only.
set -eu

if [ -d "${KINTSUGI_COMPILED:=/opt/numba}" ]; then
    copy=$(mktemp -d)
    cp -R "$KINTSUGI_COMPILED/." "$copy"
    export NUMBA_CACHE_DIR="$copy"
fi
unset KINTSUGI_COMPILED
exec kintsugi "$@"
