"""Makes docs/images/watch.svg: what `redis-state-sync watch` shows of a real server.

    python docs/make_watch_image.py

A learner publishes to a server of its own, faster and slower; readers follow it, or do not. Host
names are made up, and so is the address.
"""

from __future__ import annotations

import argparse
import io
import math
import re
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import MONOKAI

from redis_state_sync import History, StatePublisher, StateSubscriber, open_store
from redis_state_sync.cli.watch import Watched, looks
from redis_state_sync.embedded import EmbeddedServer
from redis_state_sync.keys import Keys
from redis_state_sync.reader_notes import note_of

NAMESPACE = "team/cartpole"
ADDRESS = "redis://redis.example:6379/0"
IMAGE = Path(__file__).parent / "images" / "watch.svg"
COLUMNS = 80
WAIT_S = 20.0
# Reader -> after how many versions it looks again.
READERS = {
    "sampler-1:4107:env_runner_1": 1,
    "sampler-1:4108:env_runner_2": 4,
    "sampler-2:2291:env_runner_3": 60,
}
GONE = "sampler-3:877:env_runner_4"
# A picture in docs loads no fonts from elsewhere.
FORMAT = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.S).replace(
    "Fira Code, monospace", "Fira Code, DejaVu Sans Mono, Menlo, Consolas, monospace"
)


def state(number: int) -> dict[str, object]:
    """What a small policy's learner publishes."""
    random = np.random.default_rng(number)
    return {
        "rl_module/default_policy": {"w": random.normal(size=66_000).astype(np.float32)},
        "env_to_module_connector": {"filter": random.normal(size=(4, 3))},
        "counters": {"num_env_steps_sampled_lifetime": 500 * number},
    }


class Learner:
    """Publishes, and has the readers look, until it is told to end."""

    def __init__(self, url: str, stack: ExitStack) -> None:
        def opened(name: str) -> StateSubscriber:
            return stack.enter_context(
                closing(StateSubscriber(open_store(url), NAMESPACE, name=name))
            )

        with mock.patch("socket.gethostname", return_value="trainer-0"):
            publisher = StatePublisher(open_store(url), NAMESPACE, writer_id="cartpole/seed-0")
        self._publisher = stack.enter_context(closing(publisher))
        self._readers = {name: opened(name) for name in READERS}
        self._number = 0

    def publish(self) -> None:
        """Publishes one version, and has those readers look whose turn it is."""
        self._number += 1
        publication = self._publisher.publish(state(self._number), weights_seq_no=8 * self._number)
        publication.wait(WAIT_S)
        for name, every in READERS.items():
            if self._number % every == 1 % every:
                self._readers[name].fetch(timeout=WAIT_S)

    @contextmanager
    def at_work(self, interval: float) -> Iterator[None]:
        """Publishes in the background within this block, about twice between two looks."""
        ended = threading.Event()

        def go_on() -> None:
            while not ended.wait(
                interval * (0.6 + 0.3 * math.sin(time.monotonic() / interval / 4))
            ):
                self.publish()

        thread = threading.Thread(target=go_on)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def picture(count: int, interval: float) -> str:
    """What a terminal shows after so many looks."""
    console = Console(
        record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, highlight=False
    )
    with EmbeddedServer() as server, ExitStack() as stack:
        learner = Learner(server.url, stack)
        for _ in range(40):
            learner.publish()
        history = History(open_store(server.url), NAMESPACE)
        pinned = history.pin("best")
        a_while_ago = (time.time_ns() // 1_000_000) - 2_000_000
        history.store.note_reader(
            Keys(NAMESPACE), GONE, note_of(pinned, a_while_ago), ttl_s=3600, timeout=WAIT_S
        )
        with learner.at_work(interval):
            view = Watched(NAMESPACE, ADDRESS, history.store.server_facts(timeout=WAIT_S))
            for look in looks(history, interval, count):
                panel = view.panel(look, width=COLUMNS)
        history.close()
    console.print(panel)
    return console.export_svg(
        title=f"redis-state-sync watch {NAMESPACE}",
        theme=MONOKAI,
        code_format=FORMAT,
        unique_id="watch",
    )


def main() -> None:
    """Writes the picture."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=IMAGE, help="the picture's file")
    parser.add_argument("--looks", type=int, default=40, help="how many looks to take")
    parser.add_argument("--interval", type=float, default=0.4, help="seconds between them")
    args = parser.parse_args()
    args.out.write_text(picture(args.looks, args.interval))
    print(f"wrote {args.out}")


if __name__ == "__main__":
    main()
