"""The demo: training that goes on while its server is killed. `python -m redis_state_sync.demo`.

Read in this order: cli -> session -> timeline -> chaos, then rllib_run or core_run.
"""
