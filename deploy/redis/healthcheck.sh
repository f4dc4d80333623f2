#!/bin/sh
# Usage: healthcheck.sh USER PASSWORD_FILE [PORT]
#
# Succeeds only when USER gets in and the server answers commands: fails while it is down, loading
# or full of connections, and when the users file and the password do not match.
set -eu

# The environment, not an argument; valkey-cli reads the one name or the other, by its version.
REDISCLI_AUTH=$(cat -- "$2")
VALKEYCLI_AUTH=$REDISCLI_AUTH
export REDISCLI_AUTH VALKEYCLI_AUTH

cli=valkey-cli
command -v "$cli" >/dev/null || cli=redis-cli

# After a refused password the client goes on as the default user and reports success, hence the
# comparison of all that it prints, errors included.
reply=$("$cli" -h 127.0.0.1 -p "${3-6379}" --user "$1" PING 2>&1) || true
[ "$reply" = PONG ] || {
    echo "not healthy: $reply" >&2
    exit 1
}
