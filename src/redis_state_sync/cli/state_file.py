"""A version in a file: safetensors, which many tools read, and lossless all the same.

Arrays are tensors named ``<component>/<path>``. What safetensors has no form for (numbers, texts,
structure, rare dtypes and orders, torch tensors) is a tree in this package's own wire format, in a
tensor of bytes named ``redis-state-sync/<component>``, with references where the arrays were.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from redis_state_sync.codec import decode, encode
from redis_state_sync.components import check_name, is_weights
from redis_state_sync.errors import CodecError, DecodeError, EncodeError, SettingsError
from redis_state_sync.snapshot import Snapshot

FORMAT = "1"
_OWN = "redis-state-sync"
# The key of a dict of one item that stands for an array. No state has it.
_REFERENCE = "\0array"
_DTYPES = {f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)} | {"f2", "f4", "f8", "b1"}

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class StateFile:
    """What a file holds.

    Args:
        components: Name -> tree.
        weights_seq_no: As in `Manifest`.
        about: Where it came from: namespace, version, writer, time. Nothing vouches for it.
    """

    components: Mapping[str, Any]
    weights_seq_no: int | None
    about: Mapping[str, Any]


def require_safetensors() -> None:
    """Raises `SettingsError` with the remedy if the package is not installed."""
    if find_spec("safetensors") is None:
        raise SettingsError(
            "files need the package safetensors: pip install 'redis-state-sync[export]'"
        )


def write(path: Path, snapshot: Snapshot, namespace: str, *, overwrite: bool = False) -> None:
    """Writes a version to a file, which appears whole or not at all.

    Raises:
        SettingsError: If the file is there already, or can not be written.
        CodecError: If a component is damaged, or holds what stands for references here.
    """
    require_safetensors()
    from safetensors.numpy import save_file

    if path.exists() and not overwrite:
        raise SettingsError(f"{path} is there already: name another file, or use --overwrite")
    arrays: Arrays = {}
    trees: Arrays = {}
    for name in snapshot:
        rest = _without_arrays(snapshot.view(name), name, arrays)
        trees[f"{_OWN}/{name}"] = encode(rest, path=name, guard_packed=not is_weights(name))
    manifest = snapshot.manifest
    about = {
        "namespace": namespace,
        "version": str(snapshot.version),
        "writer": manifest.writer.id,
        "time_ms": manifest.time_ms,
        "weights_seq_no": manifest.weights_seq_no,
        "components": list(snapshot),
    }
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        os.close(descriptor)
        try:
            save_file(
                {**arrays, **trees}, temporary, metadata={_OWN: FORMAT, "about": json.dumps(about)}
            )
            os.chmod(temporary, 0o666 & ~_umask())
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise SettingsError(f"{path} can not be written: {error.strerror or error}") from error


def read(path: Path) -> StateFile:
    """Reads a file that `write` has made, of unknown origin. Nothing in it is run.

    Raises:
        SettingsError: If it can not be read.
        DecodeError: If it is no such file, or damaged.
    """
    require_safetensors()
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="numpy") as file:
            metadata = file.metadata() or {}
            if metadata.get(_OWN) != FORMAT:
                raise DecodeError(f"{path} is no file that this version of 'export' has made")
            about = _about(path, metadata.get("about", ""))
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except OSError as error:
        raise SettingsError(f"{path} can not be read: {error.strerror or error}") from error
    except SafetensorError as error:
        raise DecodeError(f"{path} is no safetensors file, or damaged: {error}") from error
    components = {}
    for name in about["components"]:
        try:
            check_name(name)
            tree = decode(arrays[f"{_OWN}/{name}"], guard_packed=not is_weights(name))
            components[name] = _with_arrays(tree, arrays)
        except (KeyError, EncodeError) as error:
            raise DecodeError(f"{path} lacks a part of component {name!r}") from error
        except CodecError as error:
            raise DecodeError(f"{path}: component {name!r}: {error}") from error
    return StateFile(components, about["weights_seq_no"], about)


def _about(path: Path, text: str) -> dict[str, Any]:
    try:
        match json.loads(text):
            case {"components": list(names), "weights_seq_no": (None | int()), **_others} as about:
                if all(isinstance(name, str) for name in names):
                    return dict(about)
    except ValueError:
        pass
    raise DecodeError(f"{path} does not say what it holds")


def _without_arrays(tree: Any, path: str, arrays: Arrays) -> Any:
    if isinstance(tree, dict):
        if _REFERENCE in tree:
            raise EncodeError(f"{path}: a key that stands for references in files")
        return {key: _without_arrays(v, f"{path}/{key}", arrays) for key, v in tree.items()}
    if isinstance(tree, (list, tuple)):
        items = (_without_arrays(v, f"{path}/{i}", arrays) for i, v in enumerate(tree))
        return type(tree)(items)
    # (A 0-d array is one, a numpy scalar is not. Keys 1 and "1" may make the same path.)
    fits = isinstance(tree, np.ndarray) and tree.dtype.str.lstrip("<|") in _DTYPES
    if not fits or not tree.flags.c_contiguous or path in arrays or path.startswith(f"{_OWN}/"):
        return tree
    arrays[path] = tree
    return {_REFERENCE: path}


def _with_arrays(tree: Any, arrays: Mapping[str, Any]) -> Any:
    if isinstance(tree, dict):
        if _REFERENCE in tree:
            name = tree[_REFERENCE]
            if not isinstance(name, str) or name not in arrays:
                raise DecodeError(f"refers to {str(name)[:80]!r}, which is not there")
            return arrays[name]
        return {key: _with_arrays(value, arrays) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(_with_arrays(value, arrays) for value in tree)
    return tree


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
