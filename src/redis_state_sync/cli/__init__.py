"""The command line `redis-state-sync`: one module for each command. Needs the extra `cli`."""
