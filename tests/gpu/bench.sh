#!/usr/bin/env bash
# bench.sh - one benchmark of a card for tests/bench/gpu.mjs: bench.sh OUTDIR [CASE...]
#
# Writes OUTDIR/stamp.json (when, what and on which machine), engine.jsonl (gpu_bench, and the start) and, where
# PLIMSOLL_PEERS names the folder of gpu_peers.py, peers.jsonl. The rate of the largest bf16 product of this very run
# goes into the stamp, and each line that knows its FLOPs says which fraction of it the training reached. A case that
# fails is told on stderr and leaves no line; the others are kept, and the exit code is 1.
set -euo pipefail
. "$(dirname "$0")/programs.sh"

[ $# -ge 1 ] || { echo "usage: tests/gpu/bench.sh OUTDIR [CASE...]" >&2; exit 2; }
out=$(mkdir -p "$1" && cd "$1" && pwd)
shift
all=(8b-lora 8b-lora-ckpt 0.5b-lora 135m-lora 1.5b-full 8b-rows 0.5b-rows longest-8b-24g start-1.5b)
cases=("$@")
[ $# -gt 0 ] || cases=("${all[@]}")
failed=0

rate=$("$(program gpu_ops)" gemm/rate-8b | sed -n 's/.*"tflops":\([0-9.]*\).*/\1/p' | head -n 1)
[ -n "$rate" ] || { echo "bench.sh: the rate of products could not be measured" >&2; exit 1; }

"$(dirname "$0")/stamp.sh" "$rate" >"$out/stamp.json"

with_fraction() {
    awk -v rate="$rate" '{
        if (match($0, /"tflops":[0-9.e+]+/)) {
            value = substr($0, RSTART + 9, RLENGTH - 9)
            sub(/}$/, sprintf(",\"gemm_fraction\":%.3f}", value / rate))
        }
        print
        fflush()
    }'
}

: >"$out/engine.jsonl"
for name in "${cases[@]}"; do
    if [ "$name" = start-1.5b ]; then
        "$(dirname "$0")/bench_start.sh" >>"$out/engine.jsonl" || failed=1
    else
        "$(program gpu_bench)" "$name" | with_fraction >>"$out/engine.jsonl" || failed=1
    fi
done

if [ -n "${PLIMSOLL_PEERS:-}" ]; then
    peers=("$@") # none: all of them
    python3 "$gpu_root/tests/bench/gpu_peers.py" "$PLIMSOLL_PEERS" ${peers[@]+"${peers[@]}"} \
        >"$out/peers.jsonl" || failed=1
fi
exit "$failed"
