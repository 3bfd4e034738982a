#!/bin/sh
# entrypoint.sh - starts plimsoll in the container with the container's places: data in /data, models in /models
# and the sample model that the image carries, the port open to the outside of the container.
#
# PLIMSOLL_API_KEY, when it is set, is the key that clients must send. `serve` (also when no command is given)
# gets the places as defaults, further options come after them; any other word is a plimsoll command of its own:
# docker run plimsoll version.
set -eu

[ $# -gt 0 ] || set -- serve
if [ "$1" = serve ]; then
    shift
    set -- --listen 0.0.0.0 --port 8080 --data /data --models /usr/share/plimsoll/models "$@"
    if [ -d /models ]; then
        set -- --models /models "$@"
    fi
    if [ -n "${PLIMSOLL_API_KEY:-}" ]; then
        (umask 077 && printf '%s\n' "$PLIMSOLL_API_KEY" >/data/api-key)
        set -- --api-key-file /data/api-key "$@"
    fi
    set -- serve "$@"
fi
exec plimsoll "$@"
