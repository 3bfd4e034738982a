#!/usr/bin/env bash
# run.sh - makes the sample model and the sample datasets from nothing: corpus, tokenizer, random weights,
# pre-training by plimsoll-engine, weights rounded to bf16. Needs a finished build in build/.
#
# usage: examples/make/run.sh [FOLDER]   FOLDER (default var/harbour-1m) keeps the intermediate files and the
# log; a run that was interrupted continues from its last checkpoint when it is called again.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."
readonly TOP=$PWD MAKE=$PWD/examples/make
readonly WORK=$(readlink -m "${1:-var/harbour-1m}")

mkdir -p "$WORK/run"
cd "$WORK"
[ -f corpus/text.jsonl ] || node "$MAKE/corpus.mjs" corpus
[ -f start/tokenizer.json ] || node "$MAKE/tokenizer.mjs" corpus start
[ -f start/model.safetensors ] || node "$MAKE/model.mjs" init start
cp "$MAKE/pretrain.json" run/spec.json
# Threads that wait must sleep: on a machine that does other things too, spinning ones cost a factor of six.
OMP_WAIT_POLICY=passive "$TOP/build/plimsoll-engine" run run
node "$MAKE/model.mjs" round run/model "$TOP/examples/models/harbour-1m"
node "$MAKE/datasets.mjs" "$TOP/examples"
