#!/usr/bin/env bash
# PostgreSQL on a mount: `initdb` with checksums, `pgbench`, and the target is killed under it again and again. After each
# restart the server must recover by itself; the totals of pgbench must agree, every transaction that pgbench saw
# committed must be there, and pg_amcheck and pg_checksums must find nothing.
#
#   tools/scripts/postgresql.sh [--kills N] [--scale N] [--clients N]
#
#   PG_BIN   where the programs of the server are (the newest of /usr/lib/postgresql, or as `pg_config` says)
#   PG_USER  whom the server runs as (postgres, or nobody): it refuses root

set -euo pipefail
# shellcheck source=tools/scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

kills=3
scale=5
clients=8
while [ $# -gt 0 ]; do
    case $1 in
    --kills) kills=$2 ;;
    --scale) scale=$2 ;;
    --clients) clients=$2 ;;
    *)
        sed -n '2,/^$/s/^# \{0,1\}//p' "$0" >&2
        exit 2
        ;;
    esac
    shift 2
done

if [ -z "${PG_BIN-}" ]; then
    PG_BIN=$(find /usr/lib/postgresql /usr/pgsql-* -maxdepth 2 -name bin 2>/dev/null | sort -V | tail -n 1 || true)
    [ -n "$PG_BIN" ] || PG_BIN=$(pg_config --bindir 2>/dev/null) || die "PostgreSQL is not installed"
fi
PATH=$PG_BIN:$PATH
need initdb postgres pgbench psql pg_amcheck pg_checksums pg_isready
user=${PG_USER:-$(id -un postgres 2>/dev/null || echo nobody)}

begin 2GiB postgresql
# What has to outlive the mount: socket, logs.
beside=$scratch/beside
data=$mount/data
install -d -o "$user" "$beside"
export PGHOST=$beside PGDATABASE=postgres PGUSER=tester
server=

# As the user of the server, with nothing of root.
as_user() {
    exec setpriv --reuid "$user" --regid "$(id -g "$user")" --clear-groups --no-new-privs "$@"
}

start_server() {
    local begun
    begun=$(now)
    (
        cd "$beside"
        as_user postgres -D "$data" -k "$beside" -c listen_addresses=
    ) </dev/null >>"$beside/server.log" 2>&1 &
    server=$!
    until pg_isready -q; do
        kill -0 "$server" 2>/dev/null || {
            tail -n 20 "$beside/server.log" >&2
            die "the server does not start"
        }
        sleep 0.1
    done
    recovered_ms=$(($(now) - begun))
}

ask() {
    psql -X -q -A -t -v ON_ERROR_STOP=1 -c "$1"
}

# What holds after any recovery. `$1` transactions were seen committed.
check_tables() {
    local totals history
    totals=$(ask "SELECT count(DISTINCT total) FROM (
                      SELECT sum(abalance) AS total FROM pgbench_accounts
            UNION ALL SELECT sum(tbalance) FROM pgbench_tellers
            UNION ALL SELECT sum(bbalance) FROM pgbench_branches
            UNION ALL SELECT coalesce(sum(delta), 0) FROM pgbench_history) AS totals")
    [ "$totals" = 1 ] || die "accounts, tellers, branches and history have different totals"
    history=$(ask "SELECT count(*) FROM pgbench_history")
    [ "$history" -ge "$1" ] || die "$1 transactions were committed, $history are there"
    [ "$history" -le $(($1 + clients * life)) ] || die "$1 transactions were committed, but $history are there"
    [ "$(ask "SELECT count(*) FROM pgbench_accounts")" = $((scale * 100000)) ] || die "accounts are missing"
    work pg_amcheck --install-missing --heapallindexed --parent-check --database postgres
    there=$history
}

start
install -d -m 700 -o "$user" "$data"
work as_user initdb --data-checksums --auth trust --username tester --pgdata "$data" >"$scratch/initdb.log"
row "initdb" ok
start_server
work pgbench --initialize --quiet --scale "$scale" >"$scratch/pgbench.log" 2>&1
row "pgbench --initialize, scale $scale" ok

committed=0
for ((life = 1; life <= kills; life++)); do
    (
        # One line for each transaction that a client saw committed. Without vacuum, which takes the history of before away.
        cd "$beside" && exec pgbench --no-vacuum --client "$clients" --jobs 2 --time 600 --log --log-prefix "life$life"
    ) </dev/null >"$scratch/pgbench.log" 2>&1 &
    bench=$!
    pause "$(between 4000 8000)"
    kill -0 "$bench" 2>/dev/null || {
        cat "$scratch/pgbench.log" >&2
        die "pgbench ended before the kill"
    }
    cut
    # The server notices by itself, or not: it must not write anything more either way.
    pause 500
    kill -QUIT "$server" 2>/dev/null || true
    status=0
    wait "$bench" 2>/dev/null || status=$?
    [ "$status" != 0 ] || die "pgbench did not notice the kill"
    wait "$server" 2>/dev/null || true
    committed=$((committed + $(cat "$beside/life$life".* | wc -l)))
    check_volume
    start
    start_server
    check_tables "$committed"
    row "kill $life" "$committed committed, $there there; target back in $started_ms ms, server in $recovered_ms ms"
done

# The checkpoint of an orderly end writes everything; then each page has to have its checksum.
kill -INT "$server"
wait "$server" || die "the server ended with status $?"
work as_user pg_checksums --check --pgdata "$data" >"$scratch/checksums.log" || {
    cat "$scratch/checksums.log" >&2
    die "pg_checksums finds damaged pages"
}
row "server ended in order, pg_checksums" "$(sed -n 's/^Blocks scanned: */blocks: /p' "$scratch/checksums.log")"
stop
row "unmounted in order, fsck" ok
