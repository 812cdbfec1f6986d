"""Whether the node's container runtime gives cards to containers that nobody gave any.

Where NVIDIA's runtime is the default one, each container whose image sets ``NVIDIA_VISIBLE_DEVICES=all``, as
CUDA's own images do, sees all cards: no request, no webhook, no charge. Read from the configuration files
that the agent is shown, best effort: of one that is not shown nothing is known.
"""

from __future__ import annotations

import glob
import json
import os
import re
import tomllib

from sidecar.value import TYPE_CHECKING, value

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

MOST_BYTES = 1 << 20
_ANY = re.compile(r"[*?\[]")
# containerd's tables of its CRI plugin in versions 3, 2 and 1 of its configuration
_CRI_PLUGINS = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri", "cri")
_NVIDIA = "nvidia"
_BINARY = "nvidia-container-runtime"  # also with .cdi, .legacy, -hook behind it
_UNPRIVILEGED = "accept-nvidia-visible-devices-envvar-when-unprivileged"


@value
class RuntimeConfig:
    """What a configuration says: of which runtime, its default's name (empty: it says none), and the program
    of each runtime by name."""

    kind: str
    default: str
    programs: tuple[tuple[str, str], ...]


def hands_out_all(patterns: Iterable[str]) -> tuple[str, tuple[str, ...]]:
    """A sentence on the default runtime where it hands out cards unasked, else empty; and what was wrong
    with files that could not be read.

    ``patterns``: paths of configuration files of containerd, CRI-O or Docker, and of NVIDIA's runtime, in
    the order in which they are read; ``*``, ``?`` and ``[...]`` stand for any name, any letter, one of these.
    Of a path without them something is wrong where there is no such file; of one with them there may be none.
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
    """The sentence, from the files' contents; a later one goes before an earlier one."""
    default: dict[str, str] = {}
    programs: dict[tuple[str, str], str] = {}
    for whole in files:
        if whole.get(_UNPRIVILEGED) is False:
            return ""  # the variable of a container without privileges is not heard, default runtime or not
        if (runtime := _runtime(whole)) is not None:
            default[runtime.kind] = runtime.default or default.get(runtime.kind, "")
            programs |= {(runtime.kind, name): program for name, program in runtime.programs}
    open_by = (
        f"the default runtime of {kind} ({name}) gives all cards to each container whose image asks for them"
        for kind, name in sorted(default.items())
        if _is_nvidias(name, programs.get((kind, name), ""))
    )
    return next(open_by, "")


def _is_nvidias(name: str, program: str) -> bool:
    return os.path.basename(program).startswith(_BINARY) if program else name == _NVIDIA


def _read(path: str) -> dict[str, Any]:
    with open(path, "rb") as file:
        text = file.read(MOST_BYTES).decode("utf-8")
    whole = json.loads(text) if path.endswith(".json") else tomllib.loads(text)
    if not isinstance(whole, dict):
        raise ValueError("it holds no table")
    return whole


def _runtime(whole: dict[str, Any]) -> RuntimeConfig | None:
    """The part of a configuration that names runtimes; None where it has none."""
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
