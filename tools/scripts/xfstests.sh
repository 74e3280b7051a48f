#!/usr/bin/env bash
# xfstests on mounts of real targets: a volume that stays, and one that tests format as they like. `fsck` looks at both after
# each test.
#
#   tools/scripts/xfstests.sh TREE [ARGUMENTS of check]
#
# TREE is a checkout of xfstests that has been built (`make`); it knows nothing of ContigFS, so a few lines are added to its
# `common/rc`, once. Without arguments the group `quick` is run, without `dangerous`. Needs root, the users that xfstests
# wants (fsgqa, fsgqa2, 123456-fsgqa), and the links that contigfs/docs/operating.md names, in /usr/sbin. Images, mounts
# and results (`results`) lie in XFSTESTS_PLACE, TMPDIR/flashnet-xfstests without a word.

set -euo pipefail

if [ $# -eq 0 ] || [ ! -x "$1/check" ] || [ ! -x "$1/ltp/fsstress" ]; then
    sed -n '2,/^$/s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
tree=$(cd "$1" && pwd)
shift
[ $# -gt 0 ] || set -- -g quick -x dangerous
for program in mkfs.contigfs mount.fuse.contigfs umount.fuse.contigfs fsck.contigfs; do
    command -v "$program" >/dev/null || {
        echo "$program is not there: see contigfs/docs/operating.md" >&2
        exit 1
    }
done

place=${XFSTESTS_PLACE:-${TMPDIR:-/tmp}/flashnet-xfstests}
mkdir -p "$place"/{test,scratch,results}
finish() {
    local dir
    for dir in "$place/test" "$place/scratch"; do
        ! mountpoint -q "$dir" || umount "$dir"
    done
    rm -f "$place"/{test,scratch}.img
}
trap finish EXIT
finish

# How to format, to check, and to know one when mounted.
if ! grep -q contigfs "$tree/common/rc"; then
    python3 - "$tree/common/rc" <<'PYTHON'
import sys

path = sys.argv[1]
text = open(path).read()

def edit(old, new, times=1):
    global text
    if text.count(old) < times:
        sys.exit(f"{path} is not the one this was written for: no {old!r}")
    text = text.replace(old, new)

edit("|9p|fuse|virtiofs)\n\t\t# unable to re-create", "|9p|virtiofs)\n\t\t# unable to re-create")
edit("\n_scratch_mkfs()\n{\n", """
_contigfs_mkfs()
{
	rm -f $SCRATCH_DEV
	mkfs.contigfs --force --size $1 $SCRATCH_DEV > /dev/null
}

_contigfs_check()
{
	local dev=$1 dir=$2 mounted=no
	mountpoint -q $dir && mounted=yes && umount $dir
	if ! fsck.contigfs -f -n $dev >> $seqres.full 2>&1; then
		_log_err "fsck of $dev found something (see $seqres.full)"
	fi
	[ $mounted = no ] && return
	if [ $dir = $TEST_DIR ]; then _test_mount; else _scratch_mount; fi
}

_scratch_mkfs()
{
	if [ $FSTYP = fuse ]; then
		_contigfs_mkfs 8GiB
		return
	fi
""")
unsized = "\t*)\n\t\t_notrun \"Filesystem $FSTYP not supported in _scratch_mkfs_sized\""
# A fifth of a volume is kept from files.
edit(unsized, "\tfuse)\n\t\t_contigfs_mkfs $((fssize * 5 / 4))\n\t\t;;\n" + unsized)
edit("'s/fuse.ceph-fuse/ceph-fuse/'", "'s/fuse.ceph-fuse/ceph-fuse/' -e 's/fuse.contigfs/fuse/'")
nothing = "    fuse)\n\t# no way to check consistency for fuse\n"
edit(nothing, "    fuse)\n\t_contigfs_check CHECKED\n", 2)
text = text.replace("CHECKED", "$TEST_DEV $TEST_DIR", 1).replace("CHECKED", "$SCRATCH_DEV $SCRATCH_MNT", 1)
# The file is read while a run goes on.
open(path + ".new", "w").write(text)
PYTHON
    chmod --reference="$tree/common/rc" "$tree/common/rc.new"
    mv "$tree/common/rc.new" "$tree/common/rc"
fi

cat >"$place/config" <<END
export FSTYP=fuse FUSE_SUBTYP=.contigfs RESULT_BASE=$place/results
export TEST_DEV=$place/test.img TEST_DIR=$place/test
export SCRATCH_DEV=$place/scratch.img SCRATCH_MNT=$place/scratch
END
mkfs.contigfs --size 8GiB "$place/test.img"
mkfs.contigfs --size 8GiB "$place/scratch.img"
cd "$tree"
HOST_OPTIONS=$place/config ./check "$@"
