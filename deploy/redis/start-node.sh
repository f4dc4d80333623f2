#!/bin/sh
# Usage: start-node.sh [OPTION...]
#
# Starts a data node of a group that sentinels watch, from valkey.conf and replica.conf beside this
# file: as replica of the primary that the sentinels name, or as the primary if that is itself.
# OPTIONs are handed to the server. From the environment:
#     RSS_NODE       its own HOST:PORT, as the others reach it
#     RSS_FIRST      HOST:PORT of the node that is the primary if no sentinel can be asked
#     RSS_SENTINELS  HOST:PORT of each sentinel, with spaces between
#     RSS_WAIT       for how many seconds to go on asking them; 60 if it is not set
#     RSS_SECRETS    a folder with the files replica_password and sentinel_client_password
#     RSS_RUN        a folder in memory, to write a configuration with a password into
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
server=valkey-server
command -v "$server" >/dev/null || server=redis-server

# When everything was down, sentinels still know who was the primary last. A node that did not wait
# for them could make an older state the only one.
primary='' tries=${RSS_WAIT:-60}
while [ -z "$primary" ]; do
    # shellcheck disable=SC2086 # one word for each sentinel
    primary=$("$here/find-primary.sh" state "$RSS_SECRETS/sentinel_client_password" \
        $RSS_SENTINELS) && break
    [ "$tries" -gt 0 ] || primary="${RSS_FIRST%:*} ${RSS_FIRST##*:}"
    tries=$((tries - 1))
    sleep 1
done

umask 077
conf=$RSS_RUN/valkey.conf
{
    echo "include $here/valkey.conf"
    echo "include $here/replica.conf"
    echo "port ${RSS_NODE##*:}"
    # Names, because addresses of containers change: see sentinel.conf.
    echo "replica-announce-ip ${RSS_NODE%:*}"
    echo "replica-announce-port ${RSS_NODE##*:}"
    echo "masterauth \"$(sed 's/[\\"]/\\&/g' "$RSS_SECRETS/replica_password")\""
    [ "$primary" = "${RSS_NODE%:*} ${RSS_NODE##*:}" ] || echo "replicaof $primary"
} >"$conf"

exec "$server" "$conf" "$@"
