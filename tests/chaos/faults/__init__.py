"""Every fault, by its kind."""

from tests.chaos.faults import claims, data, network, node, processes, refusals, servers
from tests.chaos.faults.base import REGISTRY, Fault

__all__ = [
    "REGISTRY",
    "Fault",
    "claims",
    "data",
    "network",
    "node",
    "processes",
    "refusals",
    "servers",
]
