#!/usr/bin/env bash
# ranks.sh - several ranks on cards: tests/gpu/ranks.sh [truth] [shared] [bench]
#
# truth: as many ranks as there are cards (two at least), a card each, through NCCL; the losses of 20 steps must be
# those of one rank with the same batch, in fp32 and bf16, LoRA and full, for the ZeRO stages in STAGES. shared: two
# ranks on one card, through MPI and the host. bench: a 1.5B model trained in full and with LoRA on one card and on all,
# in tokens a second: one JSON line each, with the efficiency. Everything when nothing is named; what the machine cannot
# do is skipped and said. Run from the project's root; PLIMSOLL_BUILD names the build folder, PLIMSOLL_BENCH_FOLDER
# where models are kept. One line a comparison, and the closing line of the test runner.
set -uo pipefail
. "$(dirname "$0")/programs.sh"
engine=$(program plimsoll-engine)
cards=$(nvidia-smi -L 2>/dev/null | wc -l)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMP_WAIT_POLICY=passive OMP_NUM_THREADS=4
readonly STAGES=${STAGES:-0 1}
passed=0 failed=0 skipped=0 stage=0
[ $# -gt 0 ] || set -- truth shared bench
if [ "$cards" = 0 ]; then
    printf 'skipped: there is no card\n0 passed, 0 failed, 1 skipped\n'
    exit 77
fi

# spec RANKS DEVICE ACCUMULATION KEYS: a run folder; KEYS are further keys of the spec.
spec() {
    local folder
    folder=$(mktemp -d "$work/run.XXXX")
    cat >"$folder/spec.json" <<SPEC
{"parallel": {"ranks": $1, "zero_stage": ${stage:-0}}, "device": "$2", "gradient_accumulation_steps": $3, $4}
SPEC
    printf '%s\n' "$folder"
}

# by_name RANKS FOLDER: ranks that find their place in the environment. by_mpi: started by mpirun.
by_name() {
    local rank pids=() rc=0
    for ((rank = 0; rank < $1; rank++)); do
        RANK=$rank WORLD_SIZE=$1 LOCAL_RANK=$rank LOCAL_WORLD_SIZE=$1 timeout 120 "$engine" run "$2" \
            >"$2/rank.$rank.log" 2>&1 &
        pids+=($!)
    done
    for rank in "${pids[@]}"; do wait "$rank" || rc=$?; done
    [ "$rc" = 0 ] || cat "$2"/rank.*.log >&2
    return "$rc"
}
by_mpi() {
    timeout 120 mpirun --allow-run-as-root --oversubscribe -n "$1" "$engine" run "$2" >"$2/mpi.log" 2>&1 && return
    cat "$2/mpi.log" >&2
    return 1
}

losses() {
    sed -n 's/.*"kind":"step".*"loss":\([-0-9.e+]*\),.*/\1/p' "$1/events.0.jsonl"
}

# compare NAME BOUND REFERENCE OTHER
compare() {
    local line
    line=$(paste <(losses "$3") <(losses "$4") | awk -v bound="$2" '
        { d = $1 == 0 ? 1 : ($2 - $1) / $1; if (d < 0) d = -d; if (d > most) most = d; n += NF == 2 }
        END { printf "%d steps, %.1e apart at most, %.1e is right: %s", n, most, bound, \
              n == 20 && most <= bound ? "ok" : "wrong" }')
    echo "$1: $line"
    if [ "${line##* }" = ok ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
}

# same NAME RANKS HOW DEVICE: one rank against several, with the same batch.
same() {
    local kind precision bound reference other data
    data='"model": "'$gpu_root'/examples/models/harbour-1m", "max_steps": 20, "per_device_train_batch_size": 4,
        "data": {"max_length": 256, "train_files": ["'$gpu_root'/examples/first-mate.jsonl"]}, "learning_rate": 0.001'
    for kind in lora full; do
        for precision in fp32 bf16; do
            bound=1e-4 keys="$data, \"finetuning_type\": \"$kind\""
            [ $precision = fp32 ] || { bound=5e-3 keys="$keys, \"bf16\": true"; }
            reference=$(spec 1 cuda:0 "$2" "$keys")
            "$engine" run "$reference" >/dev/null 2>"$reference/log" || tail -n 3 "$reference/log"
            for stage in $STAGES; do
                other=$(spec "$2" "$4" 1 "$keys")
                if "$3" "$2" "$other"; then
                    compare "$1 $2 ranks, ZeRO $stage, $kind $precision" "$bound" "$reference" "$other"
                else
                    echo "$1 $2 ranks, ZeRO $stage, $kind $precision: a run failed"
                    failed=$((failed + 1))
                fi
            done
            stage=0
        done
    done
}

truth() {
    if [ "$cards" -lt 2 ]; then
        echo "truth: skipped, this machine has $cards cards and it takes two"
        skipped=$((skipped + 1))
        return
    fi
    same NCCL "$cards" by_name cuda
}

shared() {
    if ! command -v mpirun >/dev/null; then
        echo "shared: skipped, mpirun is not here"
        skipped=$((skipped + 1))
        return
    fi
    same shared 2 by_mpi cuda:0
}

# speed RANKS KIND: tokens a second, median of the steps after the third.
speed() {
    local folder
    folder=$(spec "$1" cuda 1 "\"model\": \"$model\", \"bf16\": true, \"finetuning_type\": \"$2\", \"max_steps\": 13,
        \"per_device_train_batch_size\": 4, \"loss_chunk_rows\": 4096, \"data\": {\"max_length\": 2048,
        \"packing_strategy\": \"rows\", \"train_files\": [\"$gpu_root/examples/first-mate.jsonl\",
        \"$gpu_root/examples/logbook.jsonl\"]}, \"num_train_epochs\": 1000")
    by_name "$1" "$folder" || return 1
    sed -n 's/.*"kind":"step".*"tokens_per_second":\([0-9.e+]*\),.*/\1/p' "$folder/events.0.jsonl" \
        | tail -n +4 | sort -g | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'
}

bench() {
    local kind one all
    model=${PLIMSOLL_BENCH_FOLDER:-$gpu_root/var/bench/start-gpu}/qwen2.5-1.5b
    if [ ! -f "$model/tokenizer.json" ]; then
        "$(program gpu_model)" "$model" qwen2.5-1.5b
        cp "$gpu_root"/examples/models/harbour-1m/{tokenizer,tokenizer_config,special_tokens_map}.json "$model/"
    fi
    for kind in full lora; do
        speed 1 "$kind" >/dev/null # chooses the products; the choices are kept
        one=$(speed 1 "$kind") && all=$(speed "$cards" "$kind") || { failed=$((failed + 1)); continue; }
        awk -v kind="$kind" -v n="$cards" -v one="$one" -v all="$all" 'BEGIN {
            printf "{\"case\":\"1.5b-%s-ranks\",\"ranks\":%d,\"tok_s\":%.0f,", kind, n, all
            printf "\"tok_s_of_one\":%.0f,\"efficiency\":%.3f}\n", one, all / (n * one) }'
        passed=$((passed + 1))
    done
}

for part in "$@"; do "$part"; done
printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
[ "$failed" = 0 ]
