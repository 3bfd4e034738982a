#!/usr/bin/env bash
# carry.sh - packs what runs on a card for another machine: tests/gpu/carry.sh OUTDIR [BUILD [MODEL]]
#
# OUTDIR gets programs.tar.gz (the programs of the target `gpu`, stripped, the libraries they need that another machine
# may not have, and the scripts around them) and `run`, which unpacks them beside itself and starts one: OUTDIR/run
# gpu_ops gemm. The C and C++ libraries are the other machine's own, which must not be older. cuBLASLt and cuDNN are too
# large to carry: `run` looks for them where the loader does and then among the Python packages. With MODEL, a folder
# with model.gguf, references and beside it gguf_to_hf.py, OUTDIR also gets model.0, model.1...: pieces that fit a
# narrow way each, which `run model` puts together and turns into a Hugging Face folder. README.md has the commands.
set -euo pipefail
readonly PIECE=33M

[ $# -ge 1 ] || { echo "usage: tests/gpu/carry.sh OUTDIR [BUILD [MODEL]]" >&2; exit 2; }
root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.." && pwd)
out=$(mkdir -p "$1" && cd "$1" && pwd)
build=$(cd "${2:-$root/build}" && pwd)
model=${3:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# As in the tree, so that the scripts find the programs as they do there.
mkdir -p "$work/build/tests" "$work/lib" "$work/tests"

for name in tests/{gpu_ops,gpu_bench,gpu_memory,gpu_model,test_golden,test_laws,test_graphs,real_tool} \
    {plimsoll-engine,group_tool}; do
    if [ ! -x "$build/$name" ]; then
        echo "carry.sh: $build/$name is not built, so it is not carried" >&2
        continue
    fi
    strip -o "$work/build/$name" "$build/$name"
    ldd "$build/$name" | awk '$2 == "=>" { print $3 }' | while read -r library; do
        case $(basename "$library") in
        libc.so.* | libm.so.* | libdl.so.* | librt.so.* | libpthread.so.* | libstdc++.so.* | libgcc_s.so.*) ;;
        *) cp -Lu "$library" "$work/lib/" ;;
        esac
    done
done
# The module of MPI takes the other machine's own MPI, which must fit its mpirun.
[ ! -f "$build/plimsoll-mpi.so" ] || strip -o "$work/build/plimsoll-mpi.so" "$build/plimsoll-mpi.so"
[ -n "$(find "$work/build" -type f)" ] || { echo "carry.sh: nothing is built; build the target gpu first" >&2; exit 1; }
chmod u+w "$work"/lib/*
strip "$work"/lib/* 2>/dev/null || true # some come without symbols
for script in gpu/truth.sh gpu/sanitize.sh real/real.py real/card.sh golden/bf16_spread.py; do
    install -D "$root/tests/$script" "$work/tests/$script"
done
if [ -n "$model" ]; then
    mkdir -p "$work/model/references"
    cp "$(dirname "$(readlink -f "$model")")/gguf_to_hf.py" "$work/model/"
    cp -r "$model"/{golden.json,tokens.json,first_mate.jsonl,adapter_start} "$work/model/references/"
    rm -f "$out"/model.[0-9]
    split -b "$PIECE" -a 1 -d "$model/model.gguf" "$out/model."
fi
tar -C "$work" -czf "$out/programs.tar.gz" .

cat >"$out/run" <<'RUN'
#!/usr/bin/env bash
# run - starts one of the carried programs or scripts: run NAME [ARGUMENT...]. RUN_PREFIX is put before it, e.g. a
# profiler. truth, sanitize and test_* read tests/golden/data: start those from the project's root. `run model` puts
# the pieces of the model beside this file together; `run real [PRECISION...]` then tries it.
set -euo pipefail
here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
there=$here/unpacked
exec 9>"$here/unpacked.lock" # the first of several that start together unpacks
flock 9
if [ ! -e "$there/build" ] || [ "$here/programs.tar.gz" -nt "$there/build" ]; then
    rm -rf "$there"
    mkdir -p "$there"
    tar -C "$there" -xmzf "$here/programs.tar.gz"
fi
exec 9>&-
paths=$there/lib
packages=$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' 2>/dev/null || true)
for name in libcublasLt.so libcudnn.so; do
    ldconfig -p 2>/dev/null | grep -q "$name" && continue
    for folder in /usr/local/cuda/lib64 "$packages"/nvidia/*/lib; do
        compgen -G "$folder/$name*" >/dev/null && paths=$paths:$folder
    done
done
loader=$paths${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export PLIMSOLL_BUILD=$there/build
name=$1
shift
case $name in
paths) # what a program that is started without this file needs as LD_LIBRARY_PATH
    printf '%s\n' "$loader"
    exit
    ;;
truth | sanitize) exec env LD_LIBRARY_PATH="$loader" "$there/tests/gpu/$name.sh" "$@" ;;
spread) exec python3 "$there/tests/golden/bf16_spread.py" tests/golden/data "$@" ;; # with the other machine's torch
model)
    cat "$here"/model.[0-9] >"$there/model/model.gguf"
    exec python3 "$there/model/gguf_to_hf.py" "$there/model/model.gguf" "$there/model/hf"
    ;;
real) exec env LD_LIBRARY_PATH="$loader" "$there/tests/real/card.sh" "$there/model/references" "$there/model/hf" "$@" ;;
esac
program=$there/build/tests/$name
[ -x "$program" ] || program=$there/build/$name
exec ${RUN_PREFIX:-} env LD_LIBRARY_PATH="$loader" "$program" "$@"
RUN
chmod +x "$out/run"
du -sh "$out"/* >&2
