"""A policy server: answers over HTTP with the newest weights, and says with which version it did.

    python serve.py
    curl -i localhost:8000/act -H 'content-type: application/json' -d '{"obs": [0, 0, 0.1, 0]}'

It needs no RLlib Algorithm and no EnvRunner: a plain StateSubscriber gives it weights.
"""

import threading
import time

import gymnasium as gym
import torch
from common import arguments, cartpole, start_ray
from fastapi import FastAPI, HTTPException
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from ray import serve

from redis_state_sync import ApplyError, StateSubscriber, open_store

api = FastAPI()


class Observation(BaseModel):
    obs: list[float] = Field(min_length=4, max_length=4)


@serve.deployment(ray_actor_options={"num_cpus": 1}, logging_config={"enable_access_log": False})
@serve.ingress(api)
class PolicyServer:
    def __init__(self, namespace):
        self._spec = cartpole().get_rl_module_spec(env=gym.make("CartPole-v1"), inference_only=True)
        self._subscriber = StateSubscriber(open_store(), namespace)
        # One object, replaced as a whole: an answer's action and version are of the same weights.
        self._serving = None
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self):
        """Off the path of requests: none of them waits for the store, or is delayed by a fetch."""
        while True:
            self._subscriber.refresh(self._load)
            time.sleep(0.05)

    def _load(self, snapshot):
        module = self._spec.build()  # A new one: the old one may be in the middle of an answer.
        try:
            module.set_state(snapshot["rl_module/default_policy"])
        except (KeyError, RuntimeError, ValueError) as error:
            raise ApplyError(f"no weights for CartPole: {error}") from error
        self._serving = (str(snapshot.version), module, time.time())

    def _newest(self):
        if self._serving is None:
            raise HTTPException(503, "nothing is published yet", headers={"Retry-After": "1"})
        return self._serving

    @api.post("/act")
    def act(self, observation: Observation):
        version, module, _ = self._newest()
        with torch.no_grad():
            batch = {"obs": torch.tensor([observation.obs], dtype=torch.float32)}
            action = int(module.forward_inference(batch)["action_dist_inputs"].argmax())
        answer = {"action": action, "version": version}
        return JSONResponse(answer, headers={"X-State-Version": version})

    @api.get("/health")
    def health(self):
        version, _, since = self._newest()
        return {"version": version, "held_for_s": time.time() - since}


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--port", type=int, default=8000)
    args = parser.parse_args()
    start_ray()
    serve.start(http_options={"host": "127.0.0.1", "port": args.port})
    serve.run(PolicyServer.bind(args.namespace))
    print(f"serving: http://127.0.0.1:{args.port}", flush=True)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        print("serving: interrupted", flush=True)
    finally:
        serve.shutdown()
