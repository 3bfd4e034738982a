#!/usr/bin/env bash
# card.sh - the checks of real.py on a card, in each precision: tests/real/card.sh REFERENCES MODEL [PRECISION...]
#
# Default fp32 and bf16, on PLIMSOLL_TEST_DEVICE (cuda:0). One line a check with the number and its bound, and one
# closing line for all. PLIMSOLL_BUILD names the build folder. Needs python3 without any package.
set -uo pipefail
here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
[ $# -ge 2 ] || { echo "usage: tests/real/card.sh REFERENCES MODEL [PRECISION...]" >&2; exit 2; }
references=$1 model=$2
shift 2
[ $# -gt 0 ] || set -- fp32 bf16
passed=0 failed=0
output=$(mktemp)
trap 'rm -f "$output"' EXIT
for precision in "$@"; do
    start=$SECONDS
    python3 "$here/real.py" "$references" "$model" --device "${PLIMSOLL_TEST_DEVICE:-cuda:0}" --precision "$precision" \
        2>&1 | tee "$output" | grep -vE '^[0-9]+ passed, [0-9]+ failed$'
    read -r p _ f _ < <(grep -E '^[0-9]+ passed, [0-9]+ failed$' "$output" || echo 0 passed, 1 failed)
    passed=$((passed + p)) failed=$((failed + f))
    echo "real $precision: $((SECONDS - start)) s"
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
