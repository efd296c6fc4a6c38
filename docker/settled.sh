#!/bin/sh
# Take time and chance out of a folder that is about to become a layer: compile its Python by hash,
# then give everything in it one time.
set -eu
python3 -m compileall -q --invalidation-mode unchecked-hash "$1" > /dev/null || true
find "$1" -exec touch --no-dereference --date "@$SOURCE_DATE_EPOCH" {} +
