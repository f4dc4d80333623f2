#!/bin/sh
# Usage: make-secrets.sh [--redis-7.0]
#
# Makes secrets/ beside this file: one random password per user, and the users file with their
# hashes. Keeps the passwords that are there, so it may be run again after users.acl was edited.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
secrets=$here/secrets

# The folder keeps others on this host out. The files are readable, because the server's user in
# the container is not their owner, and Compose mounts them as they are.
mkdir -p "$secrets"
chmod 700 "$secrets"
umask 022

for user in learner runner operator; do
    file=$secrets/${user}_password
    [ -s "$file" ] || od -An -N 32 -t x1 /dev/urandom | tr -d ' \n' >"$file"
done

RSS_LEARNER_PASSWORD_FILE=$secrets/learner_password \
RSS_RUNNER_PASSWORD_FILE=$secrets/runner_password \
RSS_OPERATOR_PASSWORD_FILE=$secrets/operator_password \
    "$here/../redis/render-acl.sh" "$@" "$secrets/users.acl"
chmod 644 "$secrets/users.acl"
