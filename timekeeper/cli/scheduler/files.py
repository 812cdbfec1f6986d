"""The files of a patched static pod: its configuration and both versions of the manifest, in one folder of
the host. That folder is never the kubelet's, which would run a second version as a second pod."""

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from timekeeper.cli.output import CommandError
from timekeeper.cli.scheduler import static_pod
from timekeeper.cli.scheduler.configuration import connected

_BEFORE, _AFTER = "kube-scheduler.before.yaml", "kube-scheduler.after.yaml"


@dataclass(frozen=True, slots=True)
class Change:
    """Files and their new texts, in the order in which to write them; None: it is deleted."""

    texts: Mapping[Path, str | None]

    def diff(self) -> str:
        """What would change, as `diff -u` prints it; "": nothing."""
        shown = [(each, text) for each, text in self.texts.items() if each.name not in (_BEFORE, _AFTER)]
        return "".join(line for each, text in shown for line in _diff(each, text))

    def write(self) -> None:
        """Write them, each at once. Raises CommandError."""
        for path, text in self.texts.items():
            try:
                _write(path, text)
            except OSError as error:
                raise CommandError(f"{path} cannot be written: {error.strerror}") from error


def patch(manifest: Path, folder: Path, entry: Mapping[str, Any]) -> Change:
    """Connects the kube-scheduler of a manifest to an extender; a second time, from the first backup on.
    Raises CommandError."""
    if folder.resolve() == manifest.resolve().parent:
        raise CommandError("--folder: the kubelet would run the backup there as a pod; name another folder")
    text = _text(manifest)
    pod = _read(manifest, text)
    if static_pod.is_patched(pod):
        if text != _text_or_none(folder / _AFTER):
            raise CommandError(
                f"{manifest} was changed after it was patched; `scheduler undo --force` drops these changes"
            )
        text = _text(folder / _BEFORE)
        pod = _read(folder / _BEFORE, text)
    present = static_pod.configuration_file(pod)
    settings = connected(
        _read(Path(present), _text(Path(present))) if present else {}, dict(entry), static_pod.kubeconfig(pod)
    )
    after = _yaml(static_pod.patched(pod, str(folder)))
    return Change(
        {
            folder / _BEFORE: text,
            folder / _AFTER: after,
            folder / static_pod.CONFIGURATION: _yaml(settings),
            manifest: after,
        }
    )


def undo(manifest: Path, folder: Path, force: bool) -> Change:
    """Restores the manifest from before the patch. Raises CommandError, also where it was changed since then,
    unless forced."""
    before = _text_or_none(folder / _BEFORE)
    if before is None:
        raise CommandError(f"{folder} has no backup: this manifest was not patched, or with another --folder")
    if not force and _text(manifest) not in (before, _text_or_none(folder / _AFTER)):
        raise CommandError(f"{manifest} was changed after it was patched; --force gives these changes up")
    ours = (folder / each for each in (static_pod.CONFIGURATION, _AFTER, _BEFORE))
    return Change({manifest: before, **dict.fromkeys(ours)})


def _diff(path: Path, text: str | None) -> list[str]:
    old = (_text_or_none(path) or "").splitlines(keepends=True)
    return list(difflib.unified_diff(old, (text or "").splitlines(keepends=True), f"{path}", f"{path}"))


def _write(path: Path, text: str | None) -> None:
    if text is None:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")  # the kubelet ignores names that begin with a dot
    temporary.write_text(text)
    temporary.chmod(path.stat().st_mode if path.exists() else 0o644)
    os.replace(temporary, path)


def _read(path: Path, text: str) -> dict[str, Any]:
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise CommandError(f"{path} is no YAML: {error}") from error
    if not isinstance(found, dict):
        raise CommandError(f"{path} has no object")
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{path} cannot be read: {error}") from error


def _text_or_none(path: Path) -> str | None:
    return _text(path) if path.exists() else None


def _yaml(value: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(value), sort_keys=False)
