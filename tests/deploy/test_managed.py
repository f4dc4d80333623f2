"""The parameters for a managed service say the same as the profile."""

from __future__ import annotations

import json
import re

from redis_state_sync.endpoint import parse_url
from tests.deploy.profiles import EXPECTED
from tests.deploy.server import DEPLOY

FOLDER = DEPLOY / "managed"
# Not a setting of the server: what the service takes off its memory.
ITS_OWN = {"reserved-memory-percent"}


def test_parameters_are_those_of_the_profile() -> None:
    """Each parameter has the profile's value, in the form that `aws --cli-input-json` takes."""
    found = json.loads((FOLDER / "elasticache-parameters.json").read_text())
    assert found.keys() == {"CacheParameterGroupName", "ParameterNameValues"}
    parameters = {}
    for each in found["ParameterNameValues"]:
        assert each.keys() == {"ParameterName", "ParameterValue"}
        assert isinstance(each["ParameterValue"], str)
        parameters[each["ParameterName"]] = each["ParameterValue"]
    assert len(parameters) == len(found["ParameterNameValues"])
    profile = dict(EXPECTED["valkey.conf"])
    words = profile["client-output-buffer-limit"].split()
    for kind, hard, soft, seconds in zip(*(words[i::4] for i in range(4)), strict=True):
        for name, value in (("hard-limit", hard), ("soft-limit", soft), ("soft-seconds", seconds)):
            profile[f"client-output-buffer-limit-{kind}-{name}"] = value
    for name in parameters.keys() - ITS_OWN:
        assert parameters[name] == profile[name], name
    # What most of these services begin with takes away what is announced.
    assert parameters["maxmemory-policy"] == "noeviction"
    assert 25 <= int(parameters["reserved-memory-percent"]) < 100
    readme = (FOLDER / "README.md").read_text()
    assert f"--cache-parameter-group-name {found['CacheParameterGroupName']}" in readme


def test_every_scheme_of_the_table_is_one_of_ours() -> None:
    """Each URL that the page recommends begins as our URLs do."""
    readme = (FOLDER / "README.md").read_text()
    schemes = set(re.findall(r"`(\w+(?:\+\w+)?)://", readme))
    assert {"rediss", "rediss+cluster"} <= schemes
    for scheme in schemes:
        assert parse_url(f"{scheme}://host/").scheme == scheme
