#!/bin/sh
# Usage: start-sentinel.sh [OPTION...]
#
# Starts a sentinel from sentinel.conf beside this file. OPTIONs are handed to the server. From the
# environment, as for start-node.sh:
#     RSS_NODE       its own HOST:PORT, as the others reach it
#     RSS_FIRST      HOST:PORT of the data node that is the primary if no other sentinel knows better
#     RSS_SENTINELS  HOST:PORT of each sentinel, with spaces between
#     RSS_SECRETS    a folder with the files sentinel_password and sentinel_client_password
#     RSS_RUN        a folder that outlives it, for its own configuration, which it rewrites
#     RSS_QUORUM     how many sentinels must agree; 2 if it is not set
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
server=valkey-server
command -v "$server" >/dev/null || server=redis-server

conf=$RSS_RUN/sentinel.conf
# The others know; or, if all were down, this one did when it ended.
# shellcheck disable=SC2086 # one word for each sentinel
primary=$("$here/find-primary.sh" state "$RSS_SECRETS/sentinel_client_password" $RSS_SENTINELS) ||
    primary=$(awk '$1 $2 == "sentinelmonitor" { print $4, $5 }' "$conf" 2>/dev/null) || true
[ -n "$primary" ] || primary="${RSS_FIRST%:*} ${RSS_FIRST##*:}"

hash_of() { # FILE
    tr -d '\r\n' <"$1" | { sha256sum 2>/dev/null || shasum -a 256; } | cut -c 1-64
}

NODE_HOST=${RSS_NODE%:*}
NODE_PORT=${RSS_NODE##*:}
NODE_ID=$(printf %s "$RSS_NODE" | { sha256sum 2>/dev/null || shasum -a 256; } | cut -c 1-40)
PRIMARY_HOST=${primary% *}
PRIMARY_PORT=${primary##* }
QUORUM=${RSS_QUORUM:-2}
SENTINEL_PASSWORD=$(sed 's/[\\"]/\\&/g' "$RSS_SECRETS/sentinel_password")
SENTINEL_SHA256=$(hash_of "$RSS_SECRETS/sentinel_password")
CLIENT_SHA256=$(hash_of "$RSS_SECRETS/sentinel_client_password")
export NODE_HOST NODE_PORT NODE_ID PRIMARY_HOST PRIMARY_PORT QUORUM
export SENTINEL_PASSWORD SENTINEL_SHA256 CLIENT_SHA256

umask 077
# By hand instead of by sub(), to which & and \ in a password would mean something.
awk '
    /^[ \t]*(#|$)/ { next }
    {
        line = ""
        while (match($0, /@[A-Z0-9_]+@/)) {
            line = line substr($0, 1, RSTART - 1) ENVIRON[substr($0, RSTART + 1, RLENGTH - 2)]
            $0 = substr($0, RSTART + RLENGTH)
        }
        print line $0
    }
' "$here/sentinel.conf" >"$conf.new"
mv -f "$conf.new" "$conf"

# The server has them from the file.
unset SENTINEL_PASSWORD
exec "$server" "$conf" --sentinel --port "$NODE_PORT" "$@"
