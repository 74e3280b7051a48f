# shellcheck shell=bash
# What the scripts of this directory share: an image in a directory of its own, a target on it that is killed and
# started again, a table of what was found, and an end that leaves nothing behind, also when it is interrupted.
#
#   FLASHNET          the program (built, if it is not given)
#   FLASHNET_EXAMPLES where the examples of `tools` lie (the same)
#   TMPDIR            where the image goes

set -Eeuo pipefail
trap 'printf "%s: line %s failed: %s\n" "${BASH_SOURCE[0]##*/}" "$LINENO" "$BASH_COMMAND" >&2' ERR
# Every job has a process group of its own: it can be ended whole, and an interrupt from the terminal reaches it through
# `clean_up` alone.
set -m

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
scratch=
mount=
image=
target=

die() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

# A line of the table.
row() {
    printf '%-48s %s\n' "$1" "${2-}"
}

need() {
    local program
    for program in "$@"; do
        command -v "$program" >/dev/null || die "$program is not installed"
    done
}

# Runs a command that may take long, so that a signal to this script is heard meanwhile.
work() {
    "$@" </dev/null &
    wait $!
}

# Milliseconds.
now() {
    date +%s%3N
}

# A number from $1 to $2.
between() {
    echo $(($1 + (RANDOM * 32768 + RANDOM) % ($2 - $1 + 1)))
}

# Lets $1 milliseconds pass.
pause() {
    work sleep "$(($1 / 1000)).$(printf %03d $(($1 % 1000)))"
}

clean_up() {
    local status=$? job
    trap - ERR
    trap '' EXIT INT TERM HUP
    set +e
    for job in $(jobs -rp); do
        kill -KILL -- "-$job" 2>/dev/null
    done
    wait 2>/dev/null
    if [ -n "$scratch" ]; then
        # A killed target leaves a dead mount.
        while umount -l "$mount" 2>/dev/null; do :; done
        [ "$status" = 0 ] || [ ! -s "$scratch/target.log" ] || tail -n 20 "$scratch/target.log" >&2
        rm -rf --one-file-system "$scratch"
    fi
    exit "$status"
}

# An image of $1, not served yet; $2 names the work.
begin() {
    [ "$(id -u)" = 0 ] || die "needs root, to mount"
    [ -e /dev/fuse ] || die "there is no /dev/fuse"
    need mountpoint setpriv
    if [ -z "${FLASHNET-}" ]; then
        (cd "$repository" && cargo build --quiet --release --package tools --bin flashnet)
        local built=${CARGO_TARGET_DIR:-$repository/target}/release
        FLASHNET=$built/flashnet
    fi
    trap clean_up EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    trap 'exit 129' HUP
    scratch=$(mktemp -d "${TMPDIR:-/tmp}/flashnet-$2.XXXXXX")
    # Programs under other users reach the mount through it.
    chmod 755 "$scratch"
    mount=$scratch/mnt
    image=$scratch/volume.img
    mkdir "$mount"
    "$FLASHNET" mkfs --size "$1" "$image" >/dev/null
    row "image of $1" "$image"
}

# Starts a target, and returns when it serves the mount.
start() {
    rm -f "$scratch/ready"
    local begun
    begun=$(now)
    FLASHNET_LOG=${FLASHNET_LOG:-warn} "$FLASHNET" serve "$image" --listen none --mount "$mount" \
        --ready-file "$scratch/ready" </dev/null >>"$scratch/target.log" 2>&1 &
    target=$!
    until [ -e "$scratch/ready" ]; do
        kill -0 "$target" 2>/dev/null || die "the target does not start"
        sleep 0.05
    done
    # shellcheck disable=SC2034 # for the tables
    started_ms=$(($(now) - begun))
    mountpoint -q "$mount" || die "the target serves no mount"
}

# kill -9.
cut() {
    kill -KILL "$target"
    wait "$target" 2>/dev/null || true
    target=
}

# Reads the whole volume, which nobody serves.
check_volume() {
    work "$FLASHNET" fsck "$image" >"$scratch/fsck.log" 2>&1 || {
        cat "$scratch/fsck.log" >&2
        die "fsck finds problems"
    }
}

# Ends the target in order, and checks the volume.
stop() {
    kill -TERM "$target"
    wait "$target" || die "the target ended with status $?"
    target=
    ! mountpoint -q "$mount" || die "it is still mounted"
    check_volume
}
