#!/usr/bin/env bash
# stamp.sh - when, of what and on which machine something on cards was measured, as one JSON object: stamp.sh [TFLOPS]
#
# TFLOPS is the rate of the largest bf16 product of that run, where it was measured. The commit is that of the programs.
set -euo pipefail
. "$(dirname "$0")/programs.sh"

ask_card() {
    nvidia-smi --query-gpu="$1" --format=csv,noheader,nounits -i 0 2>/dev/null | head -n 1 | sed 's/^ *//; s/ *$//'
}

commit() {
    if [ -n "${PLIMSOLL_CARRIED:-}" ] && [ -f "$PLIMSOLL_CARRIED/COMMIT" ]; then
        cat "$PLIMSOLL_CARRIED/COMMIT"
    elif [ -f "$gpu_root/COMMIT" ]; then
        cat "$gpu_root/COMMIT"
    else
        git -C "$gpu_root" rev-parse HEAD 2>/dev/null || echo unknown
    fi
}

cat <<STAMP
{"date": "$(date -u +%Y-%m-%dT%H:%M:%SZ)", "commit": "$(commit | cut -c1-12)",
 "gemm_tflops": ${1:-null}, "cards": $(nvidia-smi -L | wc -l),
 "machine": {"gpu": "$(ask_card name)", "driver": "$(ask_card driver_version)",
  "clock_sm_max_mhz": $(ask_card clocks.max.sm), "clock_memory_mhz": $(ask_card clocks.max.memory),
  "power_limit_w": $(ask_card power.limit), "cpus": $(nproc)}}
STAMP
