#!/usr/bin/env bash
# oom.sh - law 3 on a card: tests/gpu/oom.sh [DEVICE]
#
# A job of 20 steps, with CUDA graphs and without, in fp32 and bf16: the n-th reservation or allocation fails for some n
# of the first three steps, or a cap forces remedies before the start, or it is lowered while the job runs. Each run
# ends well, the losses are those of the undisturbed run, and an event says what happened. Run from the project's root;
# PLIMSOLL_BUILD names the build folder. One line for each run that is wrong, and the closing line of the test runner.
set -uo pipefail
. "$(dirname "$0")/programs.sh"
device=${1:-cuda:0}
engine=$(program plimsoll-engine)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMP_WAIT_POLICY=passive OMP_NUM_THREADS=2 XDG_CACHE_HOME=$work/cache
readonly LIMIT_S=60 AT_ONCE=8
readonly ALLOCATIONS=(1 2 9 31 60 83 120 171 230 301) RESERVATIONS=(1 2 3)
rows=64 # a card gives memory in pages of 16 MiB
[ "$device" != cpu ] || rows=8
passed=0 failed=0
if [ "$device" != cpu ] && ! nvidia-smi -L >/dev/null 2>&1; then
    printf 'skipped: there is no card\n0 passed, 0 failed, 1 skipped\n'
    exit 77
fi

# job NAME KEYS: a run folder with the job and further keys.
job() {
    mkdir "$work/$1"
    cat >"$work/$1/spec.json" <<SPEC
{"model": "$gpu_root/examples/models/harbour-1m", "device": "$device", "max_steps": 20, "learning_rate": 0.001,
 "per_device_train_batch_size": $rows, "data": {"packing": false, "max_length": 192, "shuffle": false,
 "train_files": ["$gpu_root/examples/first-mate.jsonl"]}, $2}
SPEC
}

losses() {
    sed -n 's/.*"kind":"step".*"loss":\([-0-9.e+]*\),.*/\1/p' "$work/$1/events.0.jsonl"
}

# judge NAME REFERENCE BOUND EVENT: what a finished run must be like.
judge() {
    local said
    said=$(paste <(losses "$2") <(losses "$1") | awk -v bound="$3" '
        { d = $1 == 0 ? 1 : ($2 - $1) / $1; if (d < 0) d = -d; if (d > most) most = d; n += NF == 2 }
        END { printf "%d steps, %.1e apart, %.1e is right", n, most, bound; exit !(n == 20 && most <= bound) }') \
        && grep -q "\"kind\":\"$4\"" "$work/$1/events.0.jsonl" && [ "$(cat "$work/$1/rc")" = 0 ] && {
        passed=$((passed + 1))
        return
    }
    failed=$((failed + 1))
    echo "$1: exit $(cat "$work/$1/rc"), $said, $(grep -c "\"kind\":\"$4\"" "$work/$1/events.0.jsonl") events $4"
    tail -n 2 "$work/$1/log" | cut -c1-300
}

# run NAME [VARIABLE=VALUE...]: in the background; its exit code goes to a file.
run() {
    local name=$1
    shift
    while [ "$(jobs -rp | wc -l)" -ge $AT_ONCE ]; do wait -n; done
    (
        rc=0
        env "$@" timeout "$LIMIT_S" "$engine" run "$work/$name" 2>"$work/$name/log" >/dev/null || rc=$?
        echo "$rc" >"$work/$name/rc"
    ) &
}

# lower NAME: halves what the job may have after its third step, and gives it back after the tenth.
lower() {
    local events=$work/$1/events.0.jsonl peak i
    for ((i = 0; i < 400; i++)); do
        grep -q '"kind":"step","step":3,' "$events" 2>/dev/null && break
        sleep 0.02
    done
    peak=$(sed -n 's/.*"planned_peak_bytes":\([0-9]*\).*/\1/p' "$events" | head -n 1)
    printf '{"cap": %d}\n' $((peak * 8 / 10)) >"$work/$1/control.json.new"
    mv "$work/$1/control.json.new" "$work/$1/control.json"
}

names=()
for precision in fp32 bf16; do
    bound=1e-5 keys='"tf32": false'
    [ $precision = fp32 ] || { bound=5e-3 keys='"bf16": true'; }
    for graphs in true false; do
        base=$precision-$graphs
        all="$keys, \"cuda_graphs\": $graphs"
        job "$base" "$all"
        run "$base"
        wait
        [ "$(cat "$work/$base/rc")" = 0 ] || { cat "$work/$base/log"; echo '0 passed, 1 failed'; exit 1; }
        for n in "${ALLOCATIONS[@]}"; do
            job "$base-allocation-$n" "$all"
            run "$base-allocation-$n" PLIMSOLL_FAIL_ALLOCATION="$n"
            names+=("$base-allocation-$n $base $bound oom")
        done
        for n in "${RESERVATIONS[@]}"; do
            job "$base-reservation-$n" "$all"
            run "$base-reservation-$n" PLIMSOLL_FAIL_RESERVATION="$n"
            names+=("$base-reservation-$n $base $bound oom")
        done
        peak=$(sed -n 's/.*"planned_peak_bytes":\([0-9]*\).*/\1/p' "$work/$base/events.0.jsonl" | head -n 1)
        job "$base-cap" "$all, \"memory\": {\"cap\": $((peak * 8 / 10))}"
        run "$base-cap"
        names+=("$base-cap $base $bound remedy")
        job "$base-lowered" "$all"
        run "$base-lowered"
        lower "$base-lowered"
        names+=("$base-lowered $base $bound remedy")
    done
done
wait
for line in "${names[@]}"; do
    read -r -a words <<<"$line"
    judge "${words[@]}"
done
printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" = 0 ]
