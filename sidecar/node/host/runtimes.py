"""Whether the node's container runtime gives cards to containers that were allocated none.

If NVIDIA's runtime is the default one, a container whose image sets ``NVIDIA_VISIBLE_DEVICES=all``, as CUDA's
images do, sees all cards without a request, a webhook or a charge. Best effort: only the configuration files
that are mounted into the agent are read.
"""

from __future__ import annotations

import glob
import json
import os
import re
import tomllib

from timekeeper.edge.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

MAX_BYTES = 1 << 20
_ANY = re.compile(r"[*?\[]")
# containerd's tables of its CRI plugin in versions 3, 2 and 1 of its configuration
_CRI_PLUGINS = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri", "cri")
_NVIDIA = "nvidia"
_BINARY = "nvidia-container-runtime"  # also with .cdi, .legacy, -hook behind it
_UNPRIVILEGED = "accept-nvidia-visible-devices-envvar-when-unprivileged"


@value
class RuntimeConfig:
    """The part of a configuration file that concerns runtimes."""

    kind: str  # CRI-O, containerd or Docker
    default: str  # the default runtime's name; empty: not set
    programs: tuple[tuple[str, str], ...]  # each runtime's name and program


def hands_out_all(patterns: Iterable[str]) -> tuple[str, tuple[str, ...]]:
    """A sentence if the default runtime gives cards to any image, else empty; and an error for each file that
    could not be read.

    ``patterns``: paths of configuration files of containerd, CRI-O, Docker or NVIDIA's runtime, later ones
    override earlier ones; ``*``, ``?`` and ``[...]`` as in a shell. A path without them must exist.
    """
    files, wrong = [], []
    for pattern in patterns:
        for path in sorted(glob.glob(pattern)) or ([] if _ANY.search(pattern) else [pattern]):
            try:
                files.append(_read(path))
            except (OSError, ValueError, RecursionError) as error:
                reason = error.strerror if isinstance(error, OSError) else error
                wrong.append(f"{path}: {reason}")
    return judged(files), tuple(wrong)


def judged(files: Iterable[dict[str, Any]]) -> str:
    """The sentence for the files' contents; later files override earlier ones."""
    default: dict[str, str] = {}
    programs: dict[tuple[str, str], str] = {}
    for whole in files:
        if whole.get(_UNPRIVILEGED) is False:
            return ""  # NVIDIA's runtime ignores the variable of an unprivileged container
        if (runtime := _runtime(whole)) is not None:
            default[runtime.kind] = runtime.default or default.get(runtime.kind, "")
            programs |= {(runtime.kind, name): program for name, program in runtime.programs}
    open_by = (
        f"the default runtime of {kind} ({name}) gives all cards to each container whose image requests them"
        for kind, name in sorted(default.items())
        if _is_nvidias(name, programs.get((kind, name), ""))
    )
    return next(open_by, "")


def _is_nvidias(name: str, program: str) -> bool:
    return os.path.basename(program).startswith(_BINARY) if program else name == _NVIDIA


def _read(path: str) -> dict[str, Any]:
    with open(path, "rb") as file:
        text = file.read(MAX_BYTES).decode("utf-8")
    whole = json.loads(text) if path.endswith(".json") else tomllib.loads(text)
    if not isinstance(whole, dict):
        raise ValueError("it is not a table")
    return whole


def _runtime(whole: dict[str, Any]) -> RuntimeConfig | None:
    """The part of a configuration that names runtimes; None if there is none."""
    if (crio := _table(whole, "crio", "runtime")) is not None:
        return _of("CRI-O", crio.get("default_runtime"), _table(crio, "runtimes"), "runtime_path")
    for plugin in _CRI_PLUGINS:
        if (cri := _table(whole, "plugins", plugin, "containerd")) is not None:
            return _of("containerd", cri.get("default_runtime_name"), _table(cri, "runtimes"), "BinaryName")
    if "default-runtime" in whole or "runtimes" in whole:
        return _of("Docker", whole.get("default-runtime"), _table(whole, "runtimes"), "path")
    return None


def _of(kind: str, default: object, runtimes: dict[str, Any] | None, program: str) -> RuntimeConfig:
    named = []
    for name, table in (runtimes or {}).items():
        options = _table(table, "options") or table
        if isinstance(options, dict) and isinstance(options.get(program), str):
            named.append((name, options[program]))
    return RuntimeConfig(kind, default if isinstance(default, str) else "", tuple(named))


def _table(whole: Any, *path: str) -> dict[str, Any] | None:
    for name in path:
        whole = whole.get(name) if isinstance(whole, dict) else None
    return whole if isinstance(whole, dict) else None
