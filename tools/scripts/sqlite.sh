#!/usr/bin/env bash
# SQLite on a mount, in several journal modes: one process commits (`synchronous = FULL`), another one reads, the target
# is killed under them again and again. After each restart the database must be in order (`PRAGMA integrity_check`), and
# every transaction that had been acknowledged must be there, whole.
#
#   tools/scripts/sqlite.sh [--kills N] [--modes "wal wal-mapped delete truncate persist"]

set -euo pipefail
# shellcheck source=tools/scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

kills=5
modes="wal wal-mapped delete truncate persist"
while [ $# -gt 0 ]; do
    case $1 in
    --kills) kills=$2 ;;
    --modes) modes=$2 ;;
    *)
        sed -n '2,/^$/s/^# \{0,1\}//p' "$0" >&2
        exit 2
        ;;
    esac
    shift 2
done

begin 512MiB sqlite
if [ -z "${FLASHNET_EXAMPLES-}" ]; then
    (cd "$repository" && cargo build --quiet --release --package tools --example sqlite_ledger)
    FLASHNET_EXAMPLES=${CARGO_TARGET_DIR:-$repository/target}/release/examples
fi
ledger=$FLASHNET_EXAMPLES/sqlite_ledger
[ -x "$ledger" ] || die "$ledger is not there"

# The end of a process whose file system died: an error of SQLite (2), or a signal (a mapping without a file behind
# it). Anything else is what this script looks for. A reader that has all it wants in memory notices nothing, and is
# sent away (143).
expect_end() {
    local status=0
    wait "$2" 2>/dev/null || status=$?
    case $1/$status in
    */2 | */135 | reader/143) ;;
    *)
        cat "$scratch/$1.log" >&2
        die "the $1 ended with status $status"
        ;;
    esac
}

start
for mode in $modes; do
    database=$mount/$mode.db
    acknowledged=$scratch/$mode.acknowledged
    : >"$acknowledged"
    journal=${mode%-mapped}
    mapped=0
    [ "$mode" = "$journal" ] || mapped=$((64 << 20))
    for ((life = 1; life <= kills; life++)); do
        before=$(wc -l <"$acknowledged")
        "$ledger" write "$database" "$journal" "$mapped" \
            </dev/null >>"$acknowledged" 2>"$scratch/writer.log" &
        writer=$!
        # A kill before the first commit would show nothing.
        until [ "$(wc -l <"$acknowledged")" -gt "$before" ]; do
            kill -0 "$writer" 2>/dev/null || expect_end writer "$writer"
            sleep 0.02
        done
        "$ledger" watch "$database" "$journal" "$mapped" \
            </dev/null >"$scratch/reader.out" 2>"$scratch/reader.log" &
        reader=$!
        pause "$(between 200 1500)"
        cut
        expect_end writer "$writer"
        kill -TERM "$reader" 2>/dev/null || true
        expect_end reader "$reader"
        check_volume
        start
        work "$ledger" check "$database" "$acknowledged" >"$scratch/check.out"
    done
    row "$mode, $kills kills" "$(<"$scratch/check.out")"
done
stop
row "unmounted in order, fsck" ok
