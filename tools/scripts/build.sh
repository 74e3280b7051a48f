#!/usr/bin/env bash
# Git and cargo on a mount: this repository is cloned there and built there. In the middle of the build the target is
# killed; after its restart the clone must be as it was, and the build must go on, end well, and leave a program that works.
#
#   tools/scripts/build.sh [--kills N] [PACKAGE]
#
# Without a package, `softrdma` is built with its unit tests, which are run from the mount. `all` stands for the whole
# workspace: the program that it makes has to pass `flashnet demo`.

set -euo pipefail
# shellcheck source=tools/scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

kills=1
package=softrdma
while [ $# -gt 0 ]; do
    case $1 in
    --kills)
        kills=$2
        shift
        ;;
    -*)
        sed -n '2,/^$/s/^# \{0,1\}//p' "$0" >&2
        exit 2
        ;;
    *) package=$1 ;;
    esac
    shift
done

need git cargo
begin 8GiB build
clone=$mount/flashnet
# Whoever owns the repository, and whatever this user has configured.
printf '[safe]\n\tdirectory = *\n' >"$scratch/gitconfig"
export GIT_CONFIG_GLOBAL=$scratch/gitconfig GIT_CONFIG_NOSYSTEM=1

head=$(git -C "$repository" rev-parse HEAD)

check_clone() {
    work git -C "$clone" fsck --full --strict --no-progress >"$scratch/git.log" 2>&1 || {
        cat "$scratch/git.log" >&2
        die "git fsck finds problems"
    }
    # The index vouches for files whose times it knows; a new one knows none, so that every byte is read.
    [ -z "$(git -C "$clone" status --porcelain)" ] || die "git status sees changes"
    GIT_INDEX_FILE=$scratch/index git -C "$clone" read-tree HEAD
    GIT_INDEX_FILE=$scratch/index git -C "$clone" diff --exit-code --stat >&2 || die "files of the clone differ"
    [ "$(git -C "$clone" rev-parse HEAD)" = "$head" ] || die "the clone is at another commit"
}

# Where the compiler leaves what it has made.
products() {
    mkdir -p "$mount/target"
    find "$mount/target" -name '*.rlib' -size +0 | wc -l
}

# The build goes to the mount, whatever else is set.
build() {
    export CARGO_TARGET_DIR=$mount/target CARGO_NET_OFFLINE=true CARGO_TERM_COLOR=never
    cd "$clone"
    if [ "$package" = all ]; then
        exec cargo build --locked --workspace
    else
        exec cargo test --locked --no-run --lib --package "$package"
    fi
}

start
begun=$(now)
work git clone --quiet --no-hardlinks "$repository" "$clone"
# What is not synced may be lost by a kill; git syncs only some of its files. One by one: the kernel does not tell a FUSE file
# system of syncfs.
find "$clone" \( -type f -o -type d \) -exec sync {} +
row "git clone" "$(git -C "$clone" ls-files | wc -l) files in $(($(now) - begun)) ms"
check_clone
row "git fsck, git status, every byte" ok

for ((life = 1; life <= kills; life++)); do
    before=$(products)
    build </dev/null >"$scratch/build.log" 2>&1 &
    cargo=$!
    until [ "$(products)" -ge $((before + 3)) ]; do
        kill -0 "$cargo" 2>/dev/null || {
            cat "$scratch/build.log" >&2
            die "the build ended before the kill"
        }
        sleep 0.1
    done
    pause "$(between 0 1500)"
    kill -0 "$cargo" 2>/dev/null || die "the build was over before the kill"
    cut
    status=0
    wait "$cargo" 2>/dev/null || status=$?
    [ "$status" != 0 ] || die "the build did not notice the kill"
    check_volume
    start
    check_clone
    row "kill $life, after $(products) libraries" "target back in $started_ms ms, clone as it was"
done

begun=$(now)
work build >"$scratch/build.log" 2>&1 || {
    cat "$scratch/build.log" >&2
    die "the build does not go on"
}
row "build went on" "$(($(now) - begun)) ms"
if [ "$package" = all ]; then
    work "$mount/target/debug/flashnet" demo >"$scratch/program.log" 2>&1
else
    program=$(sed -n 's/^ *Executable unittests .*(\(.*\))$/\1/p' "$scratch/build.log")
    work "$program" >"$scratch/program.log" 2>&1
fi || {
    cat "$scratch/program.log" >&2
    die "what was built does not work"
}
row "what was built works" "$(grep '^test result' "$scratch/program.log" || true)"
check_clone
stop
row "unmounted in order, fsck" ok
