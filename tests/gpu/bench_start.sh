#!/usr/bin/env bash
# bench_start.sh - from the start of the process to the first optimizer step: bench_start.sh [DEVICE [SHAPE]]
#
# A model of 1.5 billion random weights in a file that the page cache holds, LoRA r 16, 4 rows of 1024 tokens, bf16.
# Made once in PLIMSOLL_BENCH_FOLDER (var/bench/start-gpu). Runs three times; the first reads the files and encodes the
# data, the other two give one JSON line each, with the trace of the start on stderr. The end of the wait is the time of
# the event `step`, so nothing polls. No products were timed before, which is how a fresh machine begins: the folder of
# choices is its own and a run of one step times none.
set -euo pipefail
. "$(dirname "$0")/programs.sh"

device=${1:-cuda:0}
shape=${2:-qwen2.5-1.5b}
folder=${PLIMSOLL_BENCH_FOLDER:-$gpu_root/var/bench/start-gpu}
model=$folder/$shape
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
model=$folder/$shape
export XDG_CACHE_HOME=$folder/cache OMP_WAIT_POLICY=passive PLIMSOLL_TRACE_START=1

if [ ! -f "$model/tokenizer.json" ]; then
    "$(program gpu_model)" "$model" "$shape"
    for name in tokenizer.json tokenizer_config.json special_tokens_map.json; do
        cp "$gpu_root/examples/models/harbour-1m/$name" "$model/"
    done
fi
cat "$model/model.safetensors" >/dev/null

bf16=true
[ "$device" != cpu ] || bf16=false
engine=$(program plimsoll-engine)
for run in 1 2 3; do
    rm -rf "$folder/run"
    mkdir "$folder/run"
    cat >"$folder/run/spec.json" <<SPEC
{"model": "$model", "device": "$device", "bf16": $bf16, "finetuning_type": "lora", "r": 16, "max_steps": 1,
 "per_device_train_batch_size": 4, "data": {"max_length": 1024, "packing_strategy": "rows",
 "train_files": ["$gpu_root/examples/first-mate.jsonl", "$gpu_root/examples/logbook.jsonl"]}}
SPEC
    began=$(date +%s%N)
    "$engine" run "$folder/run" 2>"$folder/trace"
    ended=$(sed -n 's/^{"time_ms":\([0-9]*\),.*"kind":"step".*/\1/p' "$folder/run/events.0.jsonl" | head -n 1)
    tokens=$(sed -n 's/.*"kind":"step".*"tokens":\([0-9]*\),.*/\1/p' "$folder/run/events.0.jsonl" | head -n 1)
    seconds=$(awk -v a="$began" -v b="$ended" 'BEGIN { printf "%.3f", (b * 1e6 - a) / 1e9 }')
    sed "s/^/run $run: /" "$folder/trace" >&2
    [ "$run" = 1 ] && continue
    printf '{"case":"start-%s","seconds":%s,"tokens_of_step":%s}\n' "${shape#qwen2.5-}" "$seconds" "$tokens"
done
rm -rf "$folder/run"
