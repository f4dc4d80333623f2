#!/bin/sh
# Usage: render-acl.sh [--redis-7.0] OUTPUT
#
# Makes OUTPUT, an ACL file that the server can load, from users.acl. Each password comes from a
# file or from the environment, never from an argument, which every process on the host could read:
#     RSS_LEARNER_PASSWORD_FILE   or   RSS_LEARNER_PASSWORD      (RUNNER and OPERATOR likewise)
# MONITOR, REPLICA and SENTINEL are for those who have such: without a password there is no such user.
# OUTPUT holds only their SHA-256 hashes, and appears whole or not at all: a server that finds an
# empty ACL file lets everybody in.
#
# --redis-7.0 leaves out CLIENT SETINFO, which that server does not know. Clients take that.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)

die() {
    echo "render-acl.sh: $1" >&2
    exit 1
}

hash_of() { # ROLE
    eval "file=\${RSS_$1_PASSWORD_FILE-} password=\${RSS_$1_PASSWORD-}"
    # shellcheck disable=SC2154 # both are set by the eval
    if [ -n "$file" ]; then
        [ -z "$password" ] || die "RSS_$1_PASSWORD and RSS_$1_PASSWORD_FILE are both set: unset one"
        [ -r "$file" ] || die "RSS_$1_PASSWORD_FILE names a file that cannot be read: $file"
        password=$(cat -- "$file")
    fi
    if [ -z "$password" ]; then
        case $1 in MONITOR | REPLICA | SENTINEL) [ -n "$file" ] || return 0 ;; esac
        die "no password for $1: set RSS_$1_PASSWORD_FILE or RSS_$1_PASSWORD"
    fi
    case $password in
    *[[:space:]]*) die "the password for $1 contains white space" ;;
    esac
    # The hash is not salted: a short password is found from it in minutes.
    [ "${#password}" -ge 16 ] || die "the password for $1 is shorter than 16 characters"
    printf %s "$password" | { sha256sum 2>/dev/null || shasum -a 256; } | cut -c 1-64
}

without=''
if [ "${1-}" = --redis-7.0 ]; then
    without='client|setinfo'
    shift
fi
[ $# -eq 1 ] || die 'usage: render-acl.sh [--redis-7.0] OUTPUT'

LEARNER_SHA256=$(hash_of LEARNER)
RUNNER_SHA256=$(hash_of RUNNER)
OPERATOR_SHA256=$(hash_of OPERATOR)
MONITOR_SHA256=$(hash_of MONITOR)
REPLICA_SHA256=$(hash_of REPLICA)
SENTINEL_SHA256=$(hash_of SENTINEL)
export LEARNER_SHA256 RUNNER_SHA256 OPERATOR_SHA256 MONITOR_SHA256 REPLICA_SHA256 SENTINEL_SHA256

temporary=$(mktemp "$1.XXXXXX")
trap 'rm -f "$temporary"' EXIT
awk -v without="$without" '
    function flush() { if (line != "" && !absent) print line; line = ""; absent = 0 }
    /^[ \t]*(#|$)/ { next }
    /^[^ \t]/ { flush() }
    {
        for (i = 1; i <= NF; i++) {
            if (without != "" && $i == "+" without) continue
            if (match($i, /^#@[A-Z0-9_]+@$/)) {
                hash = ENVIRON[substr($i, 3, length($i) - 3)]
                if (hash == "") absent = 1
                $i = "#" hash
            }
            line = line (line == "" ? "" : " ") $i
        }
    }
    END { flush() }
' "$here/users.acl" >"$temporary"
mv -f "$temporary" "$1"
trap - EXIT
