#!/bin/sh
# Usage: healthcheck.sh [--alive] [--tls CA_FILE] USER PASSWORD_FILE [PORT]
#
# Succeeds only when USER gets in and the server answers commands: fails while it is down, loading
# or full of connections, and when the users file and the password do not match. For sentinels, too.
#
# --alive is for those who restart a server that fails: whatever it answers, it lives. A server that
# loads, or that copies from its primary, would never get to an end otherwise.
set -eu

alive='' tls=''
while :; do
    case ${1-} in
    --alive) alive=1 ;;
    --tls)
        tls=$2
        shift
        ;;
    *) break ;;
    esac
    shift
done

# The environment, not an argument; valkey-cli reads the one name or the other, by its version.
REDISCLI_AUTH=$(cat -- "$2")
VALKEYCLI_AUTH=$REDISCLI_AUTH
export REDISCLI_AUTH VALKEYCLI_AUTH
user=$1 port=${3-6379}

cli=valkey-cli
command -v "$cli" >/dev/null || cli=redis-cli

# It checks who signed the certificate, and not for which name: that is for clients elsewhere.
set -- -h 127.0.0.1 -p "$port" --user "$user"
[ -z "$tls" ] || set -- "$@" --tls --cacert "$tls"

# After a refused password the client goes on as the default user and reports success, hence the
# comparison of all that it prints, errors included.
reply=$("$cli" "$@" PING 2>&1) || true
case $alive$reply in
PONG) ;;
1*'Could not connect'* | 1*'Error:'* | 1*closed* | 1) false ;;
1*) ;;
*) false ;;
esac || {
    echo "not healthy: $reply" >&2
    exit 1
}
