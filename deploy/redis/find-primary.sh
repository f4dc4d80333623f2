#!/bin/sh
# Usage: find-primary.sh SERVICE PASSWORD_FILE HOST:PORT...
#
# Prints "HOST PORT" of the primary that the first of these sentinels to answer names. Fails if none
# does. PASSWORD_FILE holds the password of the sentinels' user `client`.
set -eu

service=$1 file=$2
shift 2
REDISCLI_AUTH=$(cat -- "$file")
VALKEYCLI_AUTH=$REDISCLI_AUTH
export REDISCLI_AUTH VALKEYCLI_AUTH

cli=valkey-cli
command -v "$cli" >/dev/null || cli=redis-cli

for sentinel; do
    # A host that is gone says nothing at all: two seconds for each.
    reply=$(timeout 2 "$cli" -h "${sentinel%:*}" -p "${sentinel##*:}" --user client \
        SENTINEL GET-MASTER-ADDR-BY-NAME "$service" 2>/dev/null) || continue
    # Host and port, each on a line. An error, or none that is known, is something else.
    case $reply in
    *'
'[0-9]*)
        printf '%s\n' "$reply" | {
            read -r host
            read -r port
            echo "$host $port"
        }
        exit 0
        ;;
    esac
done
exit 1
