#!/usr/bin/env bash
# Every fuzz target of the repository, one after the other, each from its corpus on. Fails if any of them finds something,
# and says where it is.
#
#   tools/scripts/fuzz.sh [SECONDS [TARGET...]]
#
# 60 seconds each unless told otherwise. Needs cargo-fuzz (`cargo install cargo-fuzz`) and a C++ compiler; a nightly toolchain is
# taken if there is one, else the stable compiler is told to act as one. What libFuzzer adds to the corpora is thrown away.

set -Eeuo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
seconds=${1:-60}
case $seconds in
'' | *[!0-9]*)
    echo "fuzz.sh: '$seconds' is no number of seconds" >&2
    sed -n '2,/^$/s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
shift $(($# > 0))

cargo fuzz --version >/dev/null 2>&1 || {
    echo "fuzz.sh: cargo-fuzz is not installed: cargo install cargo-fuzz" >&2
    exit 1
}
if ! cargo +nightly --version >/dev/null 2>&1; then
    export RUSTC_BOOTSTRAP=1
else
    export RUSTUP_TOOLCHAIN=nightly
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
found=0
ran=0
for crate in softrdma tools/client ftl contigfs; do
    cd "$repository/$crate"
    for target in $(cargo fuzz list); do
        if [ $# -gt 0 ] && [[ " $* " != *" $target "* ]]; then
            continue
        fi
        ran=$((ran + 1))
        # New inputs go to the first directory named, the corpus is only read.
        mkdir -p "$scratch/$target"
        log=$scratch/$target.log
        if cargo fuzz run --target-dir "$repository/target/fuzz" "$target" "$scratch/$target" "fuzz/corpus/$target" -- \
            -max_total_time="$seconds" -rss_limit_mb=4096 -timeout=20 >"$log" 2>&1; then
            runs=$(sed -n 's/^Done \([0-9]*\) runs.*/\1/p' "$log" | tail -1)
            printf '%-28s %12s runs\n' "$crate $target" "${runs:-?}"
        else
            found=1
            printf '%-28s failed:\n' "$crate $target"
            tail -n 30 "$log"
        fi
    done
done
[ "$ran" -gt 0 ] || {
    echo "fuzz.sh: no target is called $*" >&2
    exit 2
}
exit "$found"
