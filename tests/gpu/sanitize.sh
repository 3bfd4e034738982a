#!/usr/bin/env bash
# sanitize.sh - compute-sanitizer's memcheck, racecheck and initcheck over short runs: tests/gpu/sanitize.sh [TOOL...]
#
# One step of full training, LoRA, rsLoRA and DoRA of the golden llama in fp32 and bf16 (forward, backward, clip,
# AdamW), and small cases of every operation. Nothing is suppressed. initcheck does not follow what cuBLASLt's kernels
# for compute capability 9 store (a program of one product and one read of its result shows it: every element is
# reported), so there the results of products in bf16 are filled with zeros before (tests/golden/support_golden.c).
# The runs of all tools go side by side: a card has room for them, and each is bound by its own host thread. Run from
# the project's root, like truth.sh; PLIMSOLL_BUILD names the build folder. One line a run, the reports of those that
# found something, and the closing line of the test runner. Without compute-sanitizer (COMPUTE_SANITIZER, the PATH,
# /usr/local/cuda/bin) it is skipped.
set -uo pipefail
here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
build=${PLIMSOLL_BUILD:-$here/../../build}
build=$(cd "$build" && pwd) || exit 2
[ -d tests/golden/data ] || cd "$here/../.." || exit 2
[ -x "$build/tests/gpu_ops" ] || { echo "sanitize.sh: $build/tests/gpu_ops is not built"; exit 2; }
readonly LIMIT_S=${SANITIZE_LIMIT_S:-300}
device=${PLIMSOLL_TEST_DEVICE:-cuda:0}
sanitizer=${COMPUTE_SANITIZER:-$(PATH=$PATH:/usr/local/cuda/bin command -v compute-sanitizer || true)}
if [ -z "$sanitizer" ]; then
    printf 'skipped: compute-sanitizer is not here\n0 passed, 0 failed, 1 skipped\n'
    exit 77
fi
# Small sizes of every kind of operation, by parts of their names (gpu_ops --list). Of the library's products only one:
# each would be timed anew, and every kernel that is loaded for that is instrumented.
readonly OPS=(attention/d64 attention/d80 attention/d128 attention/d256 attention/window-100 attention/f32-20
    attention/odd-20 attention/cap- attention/ampere-64 attention/fixed-64 attention/one-token attention/unaligned
    gemm/nt-256 /odd/ odd-in-place odd-to- unaligned-ld norm/one backward/one column_sum/one /896 /576 /64/ in-place
    cross_entropy/8/ loss_sums rows-dense rows-tail upload-255 adamw/f32 adamw/bf16 adamw/unbiased clip sum_squares/1
    rope/64 rope/partial rope/inverse few-ids mostly-one/)
[ $# -gt 0 ] || set -- memcheck racecheck initcheck
logs=${PLIMSOLL_LOGS:-$(mktemp -d)}
mkdir -p "$logs"
[ -n "${PLIMSOLL_LOGS:-}" ] || trap 'rm -rf "$logs"' EXIT
names=()

# Under a sanitizer timing means nothing: a run without one chooses the algorithms, and no cache of a user is touched.
export PLIMSOLL_TEST_DEVICE=$device PLIMSOLL_TEST_STEPS=1 CMOCKA_MESSAGE_OUTPUT=TAP OMP_WAIT_POLICY=passive
export OMP_NUM_THREADS=2
readonly GOLDEN='llama/*/trajectory'
for precision in fp32 bf16; do
    XDG_CACHE_HOME=$logs/cache PLIMSOLL_TEST_PRECISION=$precision "$build/tests/test_golden" "$GOLDEN" \
        >"$logs/plain-$precision.log" 2>&1 || { cat "$logs/plain-$precision.log"; echo '0 passed, 1 failed'; exit 1; }
done

# start TOOL NAME PRECISION PROGRAM...: in the background; output and exit code go to $logs.
start() {
    local tool=$1 name=$1-$2 precision=$3
    shift 3
    names+=("$name")
    (
        begin=$SECONDS rc=0
        [ ! -d "$logs/cache" ] || cp -r "$logs/cache" "$logs/cache-$name"
        export PLIMSOLL_TEST_PRECISION=$precision XDG_CACHE_HOME=$logs/cache-$name
        [ "$tool $precision" != "initcheck bf16" ] || export PLIMSOLL_TEST_FILL_PRODUCTS=1
        timeout --kill-after=10 "$LIMIT_S" "$sanitizer" --tool "$tool" --error-exitcode 99 --print-limit 20 \
            "$@" >"$logs/$name.log" 2>&1 </dev/null || rc=$?
        printf '%s %s\n' "$rc" $((SECONDS - begin)) >"$logs/$name.rc"
    ) &
}

for tool in "$@"; do
    for precision in fp32 bf16; do
        start "$tool" "golden-$precision" "$precision" "$build/tests/test_golden" "$GOLDEN"
    done
    start "$tool" ops fp32 "$build/tests/gpu_ops" --device "$device" --no-time "${OPS[@]}"
done
wait
passed=0 failed=0
for name in "${names[@]}"; do
    read -r rc seconds <"$logs/$name.rc"
    verdict=$(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$logs/$name.log" | tail -n 1 | sed 's/^=* *//')
    tests=$(grep -cE '^ok [0-9]+|"ok":true' "$logs/$name.log")
    printf '%-24s exit %-3s %3d tests %4d s  %s\n' "$name" "$rc" "$tests" "$seconds" "${verdict:-no summary}"
    if [ "$rc" = 0 ] && [ "$tests" -gt 0 ] && grep -qE 'SUMMARY: 0 (errors|hazards)' <<<"$verdict"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        grep -E '^=========|^not ok|"ok":false' "$logs/$name.log" | head -n 60
    fi
done
printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
