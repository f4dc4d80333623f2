"""Asks the policy server for actions, and prints which version gave them.

python ask.py
"""

import argparse
import json
import time
import urllib.error
import urllib.request

import gymnasium as gym

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--url", default="http://127.0.0.1:8000")
parser.add_argument("--steps", type=int, default=200, help="env steps to play")
args = parser.parse_args()


def ask(obs):
    body = json.dumps({"obs": [float(number) for number in obs]}).encode()
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{args.url}/act", body, headers)
    while True:
        try:
            with urllib.request.urlopen(request, timeout=10) as reply:
                return json.load(reply)
        except urllib.error.HTTPError as error:
            if error.code != 503:
                raise
            print("nothing is published yet", flush=True)
            time.sleep(float(error.headers["Retry-After"]))


env = gym.make("CartPole-v1")
obs, _ = env.reset()
version, steps = None, 0
for _ in range(args.steps):
    answer = ask(obs)
    if answer["version"] != version:
        version = answer["version"]
        print(f"acting with version {version}", flush=True)
    obs, _, terminated, truncated, _ = env.step(answer["action"])
    if terminated or truncated:
        obs, _ = env.reset()
