#!/bin/sh
# Usage: make-secrets.sh [--redis-7.0] [USER...]
#
# Makes secrets/ beside this file: one random password per user, and the users file with their
# hashes. Keeps the passwords that are there, so it may be run again after users.acl was edited.
# USER is one that not everybody needs: monitor and grafana; replica, sentinel and sentinel_client.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
secrets=$here/secrets

flag=''
if [ "${1-}" = --redis-7.0 ]; then
    flag=$1
    shift
fi
for user; do
    case $user in
    monitor | grafana | replica | sentinel | sentinel_client) ;;
    *)
        echo "make-secrets.sh: no such user: $user" >&2
        exit 1
        ;;
    esac
done

# The folder keeps others on this host out. The files are readable, because the server's user in
# the container is not their owner, and Compose mounts them as they are.
mkdir -p "$secrets"
chmod 700 "$secrets"
umask 022

for user in learner runner operator "$@"; do
    file=$secrets/${user}_password
    [ -s "$file" ] || od -An -N 32 -t x1 /dev/urandom | tr -d ' \n' >"$file"
done

# redis_exporter takes passwords by address, from a file of this form alone.
if [ -s "$secrets/monitor_password" ]; then
    printf '{"redis://monitor@valkey:6379": "%s"}\n' "$(cat "$secrets/monitor_password")" \
        >"$secrets/redis_exporter.json"
fi

for user in MONITOR REPLICA SENTINEL; do
    file=$secrets/$(echo "$user" | tr '[:upper:]' '[:lower:]')_password
    [ ! -s "$file" ] || export "RSS_${user}_PASSWORD_FILE=$file"
done
RSS_LEARNER_PASSWORD_FILE=$secrets/learner_password \
RSS_RUNNER_PASSWORD_FILE=$secrets/runner_password \
RSS_OPERATOR_PASSWORD_FILE=$secrets/operator_password \
    "$here/../redis/render-acl.sh" ${flag:+"$flag"} "$secrets/users.acl"
chmod 644 "$secrets/users.acl"
