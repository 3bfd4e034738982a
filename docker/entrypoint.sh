#!/bin/sh
# entrypoint.sh - starts plimsoll in the container with the container's places: data in /data, models in /models and the
# sample model that the image carries, the port open to the outside of the container.
#
# `serve` (also when no command is given) gets those as defaults that further options override; any other word is a
# plimsoll command of its own: docker run plimsoll version.
set -eu

[ $# -gt 0 ] || set -- serve
if [ "$1" = serve ]; then
    shift
    set -- serve --host 0.0.0.0 --port 8080 --data /data \
        --models /models --models /opt/plimsoll/share/plimsoll/models "$@"
fi
exec plimsoll "$@"
