#!/bin/sh
# What `python` is in the sidecar's image. A container's first process ignores a SIGTERM that it has no handler for, and
# at 30m cpu Python has one after 1.1 s: this shell has it within 0.1 s. Its child ends with it, or is waited for once it
# is Python: before that it is a shell with this trap, which may lose the signal.
trap 'read -r name 2>/dev/null </proc/$child/comm && [ "$name" = python3 ] && kill $child && wait $child; exit 0' TERM
[ "$*" = "-m sidecar" ] || exec python3 "$@"
python3 "$@" &
child=$!
wait $child
