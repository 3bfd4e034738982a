#!/usr/bin/env bash
# truth.sh - whether a card computes what it should: tests/gpu/truth.sh [--device cuda:N] [STEP...]
#
# Steps, all of them when none is named, for fp32, tf32, fp16 and bf16: golden-PRECISION (the eleven families against
# transformers and PEFT), laws-PRECISION (plan = run, layout never changes learning), graphs-PRECISION (a graph is the
# same as its calls); and memory (the whole of the card, planned and measured). Run from the project's root or with it
# two folders up: golden data is read there. The programs are taken from PLIMSOLL_BUILD, else build/ beside this tree.
# One line a step, the numbers, what failed, and the closing line of the test runner. Logs: PLIMSOLL_LOGS, else a
# folder that is removed.
set -uo pipefail
here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
build=${PLIMSOLL_BUILD:-$here/../../build}
build=$(cd "$build" && pwd) || exit 2
device=${PLIMSOLL_TEST_DEVICE:-cuda:0}
if [ "${1:-}" = --device ]; then device=${2:?}; shift 2; fi
[ -d tests/golden/data ] || cd "$here/../.." || exit 2
if [ ! -d tests/golden/data ]; then
    echo "truth.sh: there is no tests/golden/data here; start it from the project's root"
    exit 2
fi
readonly LIMIT_S=540
readonly FAMILIES=(llama llama3_rope llama_bias_mha yarn mistral_sliding qwen2 qwen3 phi3 gemma gemma2 gemma3 dropout)
readonly STEPS=(golden-fp32 golden-bf16 golden-fp16 golden-tf32 laws-fp32 laws-bf16 graphs-fp32 graphs-bf16 memory)
passed=0 failed=0 skipped=0

logs=${PLIMSOLL_LOGS:-$(mktemp -d)}
mkdir -p "$logs"
[ -n "${PLIMSOLL_LOGS:-}" ] || trap 'rm -rf "$logs"' EXIT

# finish STEP RC SECONDS PASSED FAILED SKIPPED: one line; a program that ran nothing or died has failed.
finish() {
    local step=$1 rc=$2 seconds=$3 p=$4 f=$5 s=$6
    [ "$rc" = 0 ] || [ "$f" -gt 0 ] || [ "$s" -gt 0 ] || f=1
    [ $((p + f + s)) -gt 0 ] || f=1
    printf '%-12s %4d passed %3d failed %2d skipped %4d s\n' "$step" "$p" "$f" "$s" "$seconds"
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
}

# tally STEP LOG RC SECONDS: the counts of a log in TAP, and what a person wants to read of it.
tally() {
    finish "$1" "$3" "$4" "$(grep -E '^ok [0-9]+' "$2" | grep -vc '# SKIP')" \
        "$(grep -E '^not ok [0-9]+' "$2" | grep -vc '# SKIP')" \
        "$(grep -cE '^(not )?ok [0-9]+.*# SKIP' "$2")"
    grep -E "^# $device " "$2"
    grep -E '^not ok [0-9]+|^ERROR: ' "$2" | grep -v '# SKIP' | head -n 60
    [ "$3" = 0 ] || tail -n 5 "$2"
}

# cmocka_step STEP PROGRAM PRECISION
cmocka_step() {
    local log=$logs/$1.log start=$SECONDS rc=0
    PLIMSOLL_TEST_DEVICE=$device PLIMSOLL_TEST_PRECISION=$3 CMOCKA_MESSAGE_OUTPUT=TAP OMP_WAIT_POLICY=passive \
        timeout --kill-after=10 "$LIMIT_S" "$build/tests/$2" >"$log" 2>&1 </dev/null || rc=$?
    tally "$1" "$log" "$rc" $((SECONDS - start))
}

# laws_step STEP PRECISION: a process for each family, since most of the time is the host's.
laws_step() {
    local start=$SECONDS rc=0 family log=$logs/$1.log
    for family in "${FAMILIES[@]}"; do
        (
            code=0
            PLIMSOLL_TEST_DEVICE=$device PLIMSOLL_TEST_PRECISION=$2 CMOCKA_MESSAGE_OUTPUT=TAP OMP_WAIT_POLICY=passive \
                timeout --kill-after=10 "$LIMIT_S" "$build/tests/test_laws" "$family/*" \
                >"$log.$family" 2>&1 </dev/null || code=$?
            printf '%s\n' "$code" >"$log.$family.rc"
        ) &
    done
    wait
    for family in "${FAMILIES[@]}"; do
        [ "$(cat "$log.$family.rc")" = 0 ] && grep -qE '^ok [0-9]+' "$log.$family" || rc=1
        cat "$log.$family"
    done >"$log"
    tally "$1" "$log" "$rc" $((SECONDS - start))
}

memory_step() {
    local log=$logs/memory.log start=$SECONDS rc=0 s=0
    PLIMSOLL_TEST_DEVICE=$device timeout --kill-after=10 "$LIMIT_S" "$build/tests/gpu_memory" >"$log" 2>&1 || rc=$?
    [ "$rc" = 77 ] && s=1 rc=0
    finish memory "$rc" $((SECONDS - start)) "$(grep -c '"ok":true' "$log")" "$(grep -c '"ok":false' "$log")" "$s"
    grep -vE '^[0-9]+ passed' "$log"
}

[ $# -gt 0 ] || set -- "${STEPS[@]}"
for step in "$@"; do
    case $step in
    golden-*) cmocka_step "$step" test_golden "${step#golden-}" ;;
    graphs-*) cmocka_step "$step" test_graphs "${step#graphs-}" ;;
    laws-*) laws_step "$step" "${step#laws-}" ;;
    memory) memory_step ;;
    *) echo "truth.sh: there is no step $step; there are: ${STEPS[*]}"; failed=$((failed + 1)) ;;
    esac
done
if [ "$skipped" -gt 0 ]; then
    printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
else
    printf '%d passed, %d failed\n' "$passed" "$failed"
fi
[ "$failed" = 0 ] && [ $((passed + skipped)) -gt 0 ]
