"""Without RLlib: a learner in one process, and an actor in another that uses its newest weights.

    python examples/bring_your_own_learner.py

The learner fits a softmax regression in numpy; the actor classifies with whatever version is the
newest. Neither knows the other: they share a server and a namespace.
"""

import argparse
import multiprocessing
import time

import numpy as np

from redis_state_sync import StatePublisher, StateSubscriber, open_store
from redis_state_sync.embedded import EmbeddedServer

FEATURES, CLASSES = 20, 5
TRUTH = np.random.default_rng(7).normal(size=(FEATURES, CLASSES))


def batch(rng, size):
    x = rng.normal(size=(size, FEATURES))
    return x, (x @ TRUTH).argmax(axis=1)


def act(url, namespace, seconds):
    """The actor. All that it needs to know is where the state is."""
    weights = np.zeros((FEATURES, CLASSES))
    rng = np.random.default_rng()

    def load(snapshot):
        nonlocal weights
        weights = snapshot["rl_module/classifier"]["w"]

    subscriber = StateSubscriber(open_store(url), namespace)
    ends = time.monotonic() + seconds
    subscriber.wait_for(load, timeout=10)
    while time.monotonic() < ends:
        subscriber.refresh(load)  # one small question; fetches only if there is a newer version
        x, y = batch(rng, 1000)
        accuracy = ((x @ weights).argmax(axis=1) == y).mean()
        print(f"actor: version {subscriber.held}, accuracy {accuracy:.2f}", flush=True)
        time.sleep(0.5)


def learn(url, namespace, seconds):
    """The learner: publishing returns at once, and the latest state wins."""
    publisher = StatePublisher(open_store(url), namespace)
    weights = np.zeros((FEATURES, CLASSES))
    rng = np.random.default_rng(1)
    ends = time.monotonic() + seconds
    steps = 0
    while time.monotonic() < ends:
        x, y = batch(rng, 64)
        logits = x @ weights
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        weights -= 0.05 * x.T @ (p - np.eye(CLASSES)[y]) / len(x)
        steps += 1
        publisher.publish({"rl_module/classifier": {"w": weights}}, weights_seq_no=steps)
        time.sleep(0.01)
    stored = publisher.flush(timeout=5)
    print(f"learner: {steps} steps, last version {stored}", flush=True)
    publisher.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=5.0)
    args = parser.parse_args()
    with EmbeddedServer() as server:  # or any redis:// URL
        context = multiprocessing.get_context("spawn")
        actor = context.Process(target=act, args=(server.url, "my-run", args.seconds), daemon=True)
        actor.start()
        learn(server.url, "my-run", args.seconds + 1)
        actor.join(timeout=10)


if __name__ == "__main__":
    main()
