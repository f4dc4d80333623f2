"""The demo's command line."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from redis_state_sync.demo.extras import require
from redis_state_sync.demo.main import run_demo
from redis_state_sync.demo.options import PLOT_NAME, Options, default_target

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class Algo(str, enum.Enum):
    """The algorithms that the demo has a config for."""

    appo = "appo"
    impala = "impala"
    ppo = "ppo"


@app.command()
def demo(
    env: Annotated[str, typer.Option(help="Gymnasium environment.")] = "CartPole-v1",
    algo: Annotated[Algo, typer.Option(help="RLlib algorithm.")] = Algo.appo,
    seconds: Annotated[
        float | None, typer.Option(min=5, help="Time limit of the training [180; core: 30].")
    ] = None,
    target: Annotated[
        float | None, typer.Option(help="Mean return to reach [150 for CartPole-v1; core: 300].")
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(help="Use this server; it is not killed, unless it is embedded://."),
    ] = None,
    chaos: Annotated[
        bool, typer.Option("--chaos/--no-chaos", help="Kill the server half-way.")
    ] = True,
    outage: Annotated[
        float | None, typer.Option(min=0.5, help="Seconds without server [6; core: 4].")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the training.")] = 0,
    out: Annotated[Path, typer.Option(help="File or folder for the plot.")] = Path(PLOT_NAME),
    core: Annotated[
        bool, typer.Option("--core", help="15 seconds without Ray and torch: learner in numpy.")
    ] = False,
) -> None:
    """Trains through a server that is killed half-way, and shows that training does not notice.

    Ends with status 0 only if the target was reached, and every reader recovered from the outage.
    """
    if not core:
        require("rllib")
    plot = out / PLOT_NAME if out.is_dir() else out
    plot.parent.mkdir(parents=True, exist_ok=True)  # Not after a minute of training.
    ours = url is None or url.startswith("embedded://")
    options = Options(
        env="CartPole in numpy" if core else env,
        algo="cem" if core else algo.value,
        seconds=seconds if seconds is not None else (30.0 if core else 180.0),
        target=target if target is not None else default_target(env, core=core),
        url=None if ours else url,
        chaos=chaos and ours,
        outage_s=outage if outage is not None else (4.0 if core else 6.0),
        seed=seed,
        out=plot,
        core=core,
    )
    raise typer.Exit(run_demo(options))
