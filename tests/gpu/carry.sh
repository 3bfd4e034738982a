#!/usr/bin/env bash
# carry.sh - packs what runs on a card for another machine: tests/gpu/carry.sh OUTDIR [BUILD]
#
# OUTDIR gets programs.tar.gz (the programs of the target `gpu`, stripped, and the libraries they need that another
# machine may not have) and `run`, which unpacks them beside itself and starts one: OUTDIR/run gpu_ops gemm. The C and
# C++ libraries are the other machine's own, which must not be older. cuBLASLt and cuDNN are too large to carry: `run`
# looks for them where the loader does and then among the Python packages.
set -euo pipefail

[ $# -ge 1 ] || { echo "usage: tests/gpu/carry.sh OUTDIR [BUILD]" >&2; exit 2; }
out=$(mkdir -p "$1" && cd "$1" && pwd)
build=$(cd "${2:-$(dirname "$0")/../../build}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin" "$work/lib"

for program in "$build/tests/gpu_ops" "$build/tests/gpu_bench" "$build/plimsoll-engine"; do
    if [ ! -x "$program" ]; then
        echo "carry.sh: $program is not built, so it is not carried" >&2
        continue
    fi
    strip -o "$work/bin/$(basename "$program")" "$program"
    ldd "$program" | awk '$2 == "=>" { print $3 }' | while read -r library; do
        case $(basename "$library") in
        libc.so.* | libm.so.* | libdl.so.* | librt.so.* | libpthread.so.* | libstdc++.so.* | libgcc_s.so.*) ;;
        *) cp -Lu "$library" "$work/lib/" ;;
        esac
    done
done
[ -n "$(ls "$work/bin")" ] || { echo "carry.sh: nothing is built; build the target gpu first" >&2; exit 1; }
chmod u+w "$work"/lib/*
strip "$work"/lib/* 2>/dev/null || true # some come without symbols
tar -C "$work" -czf "$out/programs.tar.gz" bin lib

cat >"$out/run" <<'RUN'
#!/usr/bin/env bash
# run - starts one of the carried programs: run NAME [ARGUMENT...]. RUN_PREFIX is put before it, e.g. a profiler.
set -euo pipefail
here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
if [ ! -e "$here/unpacked/bin" ] || [ "$here/programs.tar.gz" -nt "$here/unpacked/bin" ]; then
    mkdir -p "$here/unpacked"
    tar -C "$here/unpacked" -xmzf "$here/programs.tar.gz"
fi
paths=$here/unpacked/lib
packages=$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' 2>/dev/null || true)
for name in libcublasLt.so libcudnn.so; do
    ldconfig -p 2>/dev/null | grep -q "$name" && continue
    for folder in /usr/local/cuda/lib64 "$packages"/nvidia/*/lib; do
        compgen -G "$folder/$name*" >/dev/null && paths=$paths:$folder
    done
done
export LD_LIBRARY_PATH=$paths${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
program=$1
shift
exec ${RUN_PREFIX:-} "$here/unpacked/bin/$program" "$@"
RUN
chmod +x "$out/run"
du -sh "$out" >&2
