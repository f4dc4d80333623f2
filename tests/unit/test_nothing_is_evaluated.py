"""The source itself: nothing in it unpickles, evaluates, or imports by a name that it was sent."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import redis_state_sync

SOURCE = Path(redis_state_sync.__file__).parent
# Whatever unpickles or runs what it is given, by the last part of its name or all of it.
CALLS = {
    "eval", "exec", "compile", "__import__", "execfile", "runpy.run_path", "runpy.run_module",
    "code.interact", "marshal.load", "marshal.loads", "shelve.open", "dill.load", "dill.loads",
    "joblib.load", "torch.load", "torch.jit.load", "torch.hub.load", "numpy.fromregex",
    "yaml.load", "yaml.unsafe_load", "yaml.full_load", "yaml.load_all", "pandas.read_pickle",
    "load_module", "exec_module", "os.system", "os.popen", "_deserialize_ndarray",
    "deserialize_type", "gym_space_from_dict", "space_from_dict", "from_checkpoint",
    "sys.setrecursionlimit", "set_int_max_str_digits",
}  # fmt: skip
MODULES = {"pickle", "cPickle", "_pickle", "cloudpickle", "ray.cloudpickle", "dill", "joblib",
           "marshal", "shelve", "jsonpickle", "msgpack_numpy"}  # fmt: skip
# Names a class of credentials that the user's own configuration gives, never the store; and
# fakeredis' own module, which its package hides behind a class.
ALLOWED = {("credentials.py", "import_module"), ("fake_server.py", "import_module")}


def findings(tree: ast.AST, file: str = "x.py") -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom):
                names = [node.module or "", *(f"{node.module}.{name}" for name in names)]
            yield from (f"{file}:{node.lineno}: import {n}" for n in names if n in MODULES | CALLS)
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            last = name.rpartition(".")[2]
            for keyword in node.keywords:
                if keyword.arg == "allow_pickle" and not _is(keyword.value, False):
                    yield f"{file}:{node.lineno}: allow_pickle"
                if keyword.arg in ("weights_only", "shell", "object_hook"):
                    yield f"{file}:{node.lineno}: {keyword.arg}"
            loads = name in ("np.load", "numpy.load")
            if loads and "allow_pickle" not in [keyword.arg for keyword in node.keywords]:
                yield f"{file}:{node.lineno}: np.load without allow_pickle=False"
            unpickles = name.partition(".")[0] in MODULES
            if unpickles or ({name, last} & CALLS and name != "re.compile"):
                yield f"{file}:{node.lineno}: {name}"
            if last == "import_module" and (file, last) not in ALLOWED:
                yield f"{file}:{node.lineno}: {name}"


def _is(node: ast.expr, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def test_the_source_evaluates_nothing() -> None:
    """No pickle, eval, exec, torch.load, allow_pickle=True or unsafe yaml in the package: C48."""
    files = sorted(SOURCE.rglob("*.py"))
    assert len(files) > 50
    found = [f for path in files for f in findings(ast.parse(path.read_text()), path.name)]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        "import pickle", "from pickle import loads", "import cloudpickle as p",
        "from ray import cloudpickle", "pickle.loads(x)", "eval(x)", "exec(x)", "builtins.eval(x)",
        "torch.load(x)", "from torch import load", "np.load(f, allow_pickle=True)", "np.load(f)",
        "np.load(f, allow_pickle=flag)", "np.save(f, a, allow_pickle=1)", "yaml.load(x)",
        "importlib.import_module(name)", "__import__(name)", "_deserialize_ndarray(x)",
        "torch.load(x, weights_only=False)", "subprocess.run(x, shell=True)", "marshal.loads(x)",
        "Algorithm.from_checkpoint(x)", "compile(x, '', 'exec')",
    ],
)  # fmt: skip
def test_the_guard_sees(line: str) -> None:
    """The guard would see it if it were there."""
    if line == "from ray import cloudpickle":
        assert list(findings(ast.parse(line))) == ["x.py:1: import ray.cloudpickle"]
    else:
        assert list(findings(ast.parse(line)))
