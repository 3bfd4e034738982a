#!/usr/bin/env bash
# ranks.sh - several ranks on cards: tests/gpu/ranks.sh [groups] [truth] [shared] [links] [bench]
#
# groups: every exchange of every group of ranks against what it must give, through NCCL and through MPI. links: how
# long exchanges take, one JSON line a kind and size.
# truth: as many ranks as there are cards (two at least), a card each, through NCCL; the losses of 20 steps must be
# those of one rank with the same batch, in fp32 and bf16, LoRA, full and with checkpointing, for the layouts named in
# LAYOUTS (of: ddp zero1 zero2 zero3 kept bf16sums tp pp offload). shared: two ranks on one card, through MPI and the
# host, in bf16. bench: a 1.5B model trained in full and with LoRA on one card and on all, by the layouts named in
# BENCH_LAYOUTS, in tokens a second: one JSON line each, with the efficiency and the part of the exchanges' time that
# computing hides. Everything when nothing is named; what the machine cannot
# do is skipped and said. Run from the project's root; PLIMSOLL_BUILD names the build folder, PLIMSOLL_BENCH_FOLDER
# where models are kept. One line a comparison, and the closing line of the test runner.
set -uo pipefail
. "$(dirname "$0")/programs.sh"
engine=$(program plimsoll-engine)
cards=$(nvidia-smi -L 2>/dev/null | wc -l)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMP_WAIT_POLICY=passive OMP_NUM_THREADS=4
readonly LAYOUTS=${LAYOUTS:-ddp zero1 zero2 zero3 kept bf16sums tp pp offload}
readonly BENCH_LAYOUTS=${BENCH_LAYOUTS:-ddp zero1 zero2 zero3 tp pp}
passed=0 failed=0 skipped=0 layout=ddp
[ $# -gt 0 ] || set -- groups truth shared links bench
if [ "$cards" = 0 ]; then
    printf 'skipped: there is no card\n0 passed, 0 failed, 1 skipped\n'
    exit 77
fi

# keys_of LAYOUT RANKS: its keys of `parallel`, and beside it.
keys_of() {
    case $1 in
    ddp) ;;
    zero[123]) printf ', "zero_stage": %s' "${1#zero}" ;;
    kept) printf ', "zero_stage": 3, "reshard_after_forward": false' ;;
    bf16sums) printf ', "zero_stage": 2, "reduce_dtype": "bfloat16"' ;;
    tp) printf ', "tensor_parallel_degree": %s' "$2" ;;
    pp) printf ', "pipeline_parallel_degree": %s' "$2" ;;
    offload) printf ', "zero_stage": 3' ;;
    *) echo "ranks.sh: $1 is no layout" >&2 && exit 2 ;;
    esac
}
# Weights and states leave, of adapters and of all that is trained.
beside() {
    [ "$1" = offload ] || return 0
    printf ', "optimizer_offloading": true, "param_offloading": true'
}

# spec RANKS DEVICE ROWS KEYS: a run folder for steps of so many rows; KEYS are further keys of the spec. What the
# layout does not deal to ranks it accumulates: four rows a micro-batch, or one where a pipeline wants many.
spec() {
    local folder each=$3 micro=4
    folder=$(mktemp -d "$work/run.XXXX")
    case $layout in tp) ;; pp) micro=1 ;; *) each=$(($3 / $1)) ;; esac
    cat >"$folder/spec.json" <<SPEC
{"parallel": {"ranks": $1$(keys_of "$layout" "$1")}, "device": "$2", "per_device_train_batch_size": $micro,
 "gradient_accumulation_steps": $((each / micro))$(beside "$layout"), $4}
SPEC
    printf '%s\n' "$folder"
}

# tool RANKS HOW DEVICE [time]: group_tool in all ranks; 0 if every one says that nothing was wrong.
tool() {
    local folder rank pids=() rc=0
    folder=$(mktemp -d "$work/tool.XXXX")
    if [ "$2" = by_mpi ]; then
        timeout 120 mpirun --allow-run-as-root --oversubscribe -n "$1" "$(program group_tool)" "$folder" "$3"
        return
    fi
    for ((rank = 0; rank < $1; rank++)); do
        RANK=$rank WORLD_SIZE=$1 LOCAL_RANK=$rank LOCAL_WORLD_SIZE=$1 \
            timeout 120 "$(program group_tool)" "$folder" "$3" ${4:+"$4"} &
        pids+=($!)
    done
    for rank in "${pids[@]}"; do wait "$rank" || rc=$?; done
    return "$rc"
}
groups() {
    tool "$cards" by_name cuda && passed=$((passed + 1)) || failed=$((failed + 1))
    ! command -v mpirun >/dev/null || { tool 2 by_mpi cuda:0 && passed=$((passed + 1)) || failed=$((failed + 1)); }
}
links() {
    tool "$cards" by_name cuda time && passed=$((passed + 1)) || failed=$((failed + 1))
}

# by_name RANKS FOLDER: ranks that find their place in the environment; with $last_step they are killed when it is done,
# which spares the writing of results. by_mpi: started by mpirun.
by_name() {
    local rank pids=() rc=0
    for ((rank = 0; rank < $1; rank++)); do
        RANK=$rank WORLD_SIZE=$1 LOCAL_RANK=$rank LOCAL_WORLD_SIZE=$1 timeout 120 "$engine" run "$2" \
            >"$2/rank.$rank.log" 2>&1 &
        pids+=($!)
    done
    while [ -n "${last_step:-}" ] && [ -n "$(jobs -rp)" ]; do
        grep -qs "\"kind\":\"step\".*\"step\":$last_step," "$2/events.0.jsonl" || { sleep 0.2; continue; }
        pkill -KILL -P "$(echo "${pids[@]}" | tr ' ' ',')"
        wait "${pids[@]}"
        return 0
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

# same NAME RANKS HOW DEVICE PRECISION...: one rank against several, with the same batch.
same() {
    local name=$1 ranks=$2 how=$3 device=$4 method precision bound reference other keys
    shift 4
    for method in lora full checkpointing; do
        for precision in "$@"; do
            keys='"model": "'$gpu_root'/examples/models/harbour-1m", "max_steps": 20, "learning_rate": 0.001,
                "data": {"max_length": 256, "train_files": ["'$gpu_root'/examples/first-mate.jsonl"]}'
            case $method in
            full) keys="$keys, \"finetuning_type\": \"full\"" ;;
            checkpointing) keys="$keys, \"gradient_checkpointing\": true" ;;
            esac
            bound=1e-4
            [ $precision = fp32 ] || { bound=5e-3 keys="$keys, \"bf16\": true"; }
            layout=ddp reference=$(spec 1 cuda:0 $((4 * ranks)) "$keys")
            "$engine" run "$reference" >/dev/null 2>"$reference/log" || tail -n 3 "$reference/log"
            for layout in $LAYOUTS; do
                other=$(spec "$ranks" "$device" $((4 * ranks)) "$keys")
                if "$how" "$ranks" "$other"; then
                    [ "$layout" != bf16sums ] || bound=5e-3
                    compare "$name $ranks ranks, $layout, $method $precision" "$bound" "$reference" "$other"
                else
                    echo "$name $ranks ranks, $layout, $method $precision: a run failed"
                    failed=$((failed + 1))
                fi
            done
        done
    done
}

truth() {
    if [ "$cards" -lt 2 ]; then
        echo "truth: skipped, this machine has $cards cards and it takes two"
        skipped=$((skipped + 1))
        return
    fi
    same NCCL "$cards" by_name cuda fp32 bf16
}

shared() {
    if ! command -v mpirun >/dev/null; then
        echo "shared: skipped, mpirun is not here"
        skipped=$((skipped + 1))
        return
    fi
    same shared 2 by_mpi cuda:0 bf16
}

# speed RANKS KIND ROWS: tokens a second, median of ten steps after three, and the highest peak of a rank in GiB.
speed() {
    local folder last_step=13
    folder=$(spec "$1" cuda "$3" "\"model\": \"$model\", \"bf16\": true, \"finetuning_type\": \"$2\",
        \"max_steps\": 1000, \"loss_chunk_rows\": 4096, \"data\": {\"max_length\": 2048,
        \"packing_strategy\": \"rows\", \"train_files\": [\"$work/rows.jsonl\"]}")
    by_name "$1" "$folder" || return 1
    sed -n 's/.*"kind":"step".*"tokens_per_second":\([0-9.e+]*\),.*/\1/p' "$folder/events.0.jsonl" \
        | sed -n "4,${last_step}p" | sort -g | awk '{ v[NR] = $1 } END { printf "%s ", v[int((NR + 1) / 2)] }'
    sed -n 's/.*"kind":"memory".*"peak":\([0-9]*\),.*/\1/p' "$folder"/events.*.jsonl \
        | sort -g | tail -n 1 | awk '{ printf "%.2f\n", $1 / 2 ^ 30 }'
    rm -rf "$folder"
}

# Hidden: of the time that exchanges add when nothing runs beside them, what is not added when it may: 1 is all of it.
# Computing alone takes as long as one card with a card's share of the rows.
bench() {
    local i kind one all serial rows=$((4 * cards))
    model=${PLIMSOLL_BENCH_FOLDER:-$gpu_root/var/bench/start-gpu}/qwen2.5-1.5b
    # Documents longer than a row, as a peer that is given whole rows sees them: short ones would spare attention. What
    # is left of each shares rows with others, so that all rows are full.
    for ((i = 0; i < 64; i++)); do
        printf '{"text": "%s"}\n' "$(printf 'All hands aloft to reef the topsails! %.0s' {1..400})"
    done >"$work/rows.jsonl"
    if [ ! -f "$model/tokenizer.json" ]; then
        "$(program gpu_model)" "$model" qwen2.5-1.5b
        cp "$gpu_root"/examples/models/harbour-1m/{tokenizer,tokenizer_config,special_tokens_map}.json "$model/"
    fi
    for kind in full lora; do
        layout=ddp
        speed 1 "$kind" 4 >/dev/null # chooses the products; the choices are kept
        one=$(speed 1 "$kind" 4) || { failed=$((failed + 1)); continue; }
        for layout in $BENCH_LAYOUTS; do
            serial=
            all=$(speed "$cards" "$kind" "$rows") || { failed=$((failed + 1)); continue; }
            case $layout in tp | pp) ;; *) serial=$(PLIMSOLL_NO_OVERLAP=1 speed "$cards" "$kind" "$rows") ;; esac
            report_speed "$one" "$all" "$serial"
            passed=$((passed + 1))
        done
    done
}
# report_speed ONE ALL SERIAL: rates and peaks, as speed prints them.
report_speed() {
    echo "$1 $2 $3" | awk -v what="\"1.5b-$kind-ranks\",\"layout\":\"$layout\",\"ranks\":$cards" -v n="$cards" '{
        printf "{\"case\":%s,\"tok_s\":%.0f,\"tok_s_of_one\":%.0f,", what, $3, $1
        printf "\"efficiency\":%.3f,\"peak_gib\":%.2f,\"peak_gib_of_one\":%.2f", $3 / (n * $1), $4, $2
        added = NF > 4 ? 1 / $5 - 1 / (n * $1) : 0
        if (NF > 4) printf ",\"tok_s_without_overlap\":%.0f", $5
        if (added > 0) printf ",\"hidden\":%.2f", (1 / $5 - 1 / $3) / added
        print "}" }'
}

for part in "$@"; do "$part"; done
printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
[ "$failed" = 0 ]
