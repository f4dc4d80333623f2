"""Plays CartPole with actions of the policy server, and prints which version gave them.

python ask.py
"""

import argparse
import http.client
import json
import time

import gymnasium as gym

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--port", type=int, default=8000)
parser.add_argument("--steps", type=int, default=200, help="env steps to play")
args = parser.parse_args()


def ask(connection, obs):
    body = json.dumps({"obs": [float(number) for number in obs]})
    while True:
        connection.request("POST", "/act", body, {"content-type": "application/json"})
        reply = connection.getresponse()
        text = reply.read()
        if reply.status == 200:
            return json.loads(text)
        if reply.status != 503:
            raise RuntimeError(f"{reply.status}: {text}")
        print("nothing is published yet", flush=True)
        time.sleep(float(reply.headers["Retry-After"]))


server = http.client.HTTPConnection("127.0.0.1", args.port, timeout=10)
env = gym.make("CartPole-v1")
obs, _ = env.reset()
version = None
for _ in range(args.steps):
    answer = ask(server, obs)
    if answer["version"] != version:
        version = answer["version"]
        print(f"acting with version {version}", flush=True)
    obs, _, terminated, truncated, _ = env.step(answer["action"])
    if terminated or truncated:
        obs, _ = env.reset()
