# programs.sh - where the programs of the GPU suite are; sourced by the scripts beside it.
#
# PLIMSOLL_CARRIED names a folder that carry.sh filled; otherwise PLIMSOLL_BUILD, or build/ of this tree. Afterwards
# program NAME prints the path of one of them and LD_LIBRARY_PATH is what they need: the `run` of a carried folder is
# asked once, so that its own work is in no measurement.
gpu_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
if [ -n "${PLIMSOLL_CARRIED:-}" ]; then
    LD_LIBRARY_PATH=$("$PLIMSOLL_CARRIED/run" paths)
    export LD_LIBRARY_PATH
    PLIMSOLL_BUILD=$PLIMSOLL_CARRIED/unpacked/build
fi

program() {
    local build=${PLIMSOLL_BUILD:-$gpu_root/build}
    if [ "$1" = plimsoll-engine ] || [ "$1" = group_tool ]; then
        printf '%s\n' "$build/$1"
    else
        printf '%s\n' "$build/tests/$1"
    fi
}
