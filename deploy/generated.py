"""Writes into the chart what follows from the table of dialects: CEL expressions, match conditions, and the
resources for which kube-scheduler calls the extender. Then renders the chart.

``python -m deploy.generated`` writes every template, sample and rendered file anew, and prints the changed
ones.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import indent

from deploy import rendered
from deploy.local.scheduler import UNCOUNTED_RESOURCES
from timekeeper.cli.doctor.extender_entry import MANAGED_RESOURCES
from timekeeper.core import accelerators
from timekeeper.core.dialects import GPU_RESOURCE
from webhook.admission import cel, workloads

FOLDERS = (rendered.CHART / "templates", Path(__file__).parent / "samples")


def _with_named(expression: str) -> str:
    """A match condition that also has the accelerators that the chart's values name."""
    of_table = f"k.matches(r'{accelerators.RESOURCE}'))"
    return expression.replace(of_table, of_table + '{{ include "bursar.devices" . }}')


# expressions that are generated whole, by the names of their conditions and variables
_WHOLE: Mapping[str, Callable[[], str]] = {
    "gpu-pods": lambda: _with_named(cel.gpu_pods()),
    "gpu-templates": lambda: _with_named(workloads.gpu_templates()),
    "changed-templates": workloads.changed_templates,
    "not-a-mirror": cel.not_a_mirror,
    "locks": cel.locks,
    "others": cel.others_fields,
    "forRuntime": cel.for_runtime,
    "otherRequest": cel.has_request_of_others,
}
_EXPRESSION = re.compile(
    r"^(?P<head>(?P<margin> *)- name: (?P<name>[\w-]+)\n +expression: \|\n)(?:(?P=margin)   .*\n)+",
    re.MULTILINE,
)
_MANAGED = re.compile(r"(?<=^        managedResources:\n)(?: {10}.*\n)+", re.MULTILINE)
_NAME_TEST = r"(?:{k}\.startsWith\('[^']*'\)|{k} == '[^']*')"
_LABELS, _ANNOTATIONS = (
    r"(?:variables\.labels(?:After|ToSearch)\.filter\(k, )",
    r"(?:variables\.(?:after|toSearch)\.filter\(k, )",
)


def _tests(k: str) -> str:
    test = _NAME_TEST.format(k=re.escape(k))
    return rf"\({test}(?: \|\| {test})*\)"


# parts of expressions: what stands before a part -> the part -> its text
_PARTS: tuple[tuple[str, str, Callable[[], str]], ...] = (
    (_ANNOTATIONS, _tests("k"), cel.immutable_annotations),
    (_LABELS, _tests("k"), cel.immutable_labels),
    (r"\.filter\(g, ", _tests("g.name"), lambda: cel.immutable_labels("g.name")),
    (r"annotations\S*\s*\.(?:exists|filter)\(k, k\.matches\(r'", r"\^\([^']*", cel.written_annotations),
    (r"labels\S*\s*\.(?:exists|filter)\(k, k\.matches\(r'", r"\^\([^']*", cel.written_labels),
    (r"g\.name\.matches\(r'", r"\^\([^']*", cel.written_labels),
    (
        r"",
        r"\(k\.split\('/'\)\[0\] in \[[^\]]*\](?: \|\| k\.startsWith\('[^']*'\))*\)",
        cel.device_annotations,
    ),
    (
        r"(?:limits|requests|overhead)\S*\s*\.(?:exists|filter)\(k, k\.matches\(r'|&& k\.matches\(r'",
        r"\^\([^']*",
        lambda: GPU_RESOURCE,
    ),
    (r"&& !\(", r"object\.spec\.\?schedulerName[^\n]*(?=\)\))", cel.is_of_kais_webhook),
    (r"\|\| k\.matches\(r'", r"\^\([^']*", lambda: accelerators.RESOURCE),
    (r"&& !", r"\[\[\[[^\n]*?\]\]\](?=\.exists\(d, )", cel.zero_counts),
    (r"!variables\.few \? \[\] : ", r"\[\[.*\]\]", cel.plugin_annotations),
    (r"variables\.before \? \[\] : ", r"\[\[.*\]\]", cel.erased_annotations),
)


def written(text: str) -> str:
    """A template or sample with its generated parts as the code gives them."""
    for before, part, generated in _PARTS:
        escaped = generated().replace("\\", r"\\")
        text = re.sub(f"({before}){part}", rf"\g<1>{escaped}", text)
    text = _MANAGED.sub(lambda _: indent(_managed(), " " * 10), text)
    return _EXPRESSION.sub(_whole, text)


def main() -> None:
    """Write the templates and samples, then what is rendered from them, and print the path of each that
    changed."""
    sources = sorted(file for folder in FOLDERS for file in folder.glob("*.yaml"))
    values = {rendered.CHART / "values.yaml": rendered.values_yaml(), rendered.ALERTS: rendered.alerts()}
    values[rendered.DEFAULTS] = rendered.defaults()
    _write({file: written(file.read_text()) for file in sources} | values | rendered.dashboards())
    _write(rendered.files(rendered.helm()))


def _write(texts: Mapping[Path, str]) -> None:
    for file, text in texts.items():
        if not file.exists() or file.read_text() != text:
            file.write_text(text)
            print(file)


def _whole(found: re.Match[str]) -> str:
    if found["name"] not in _WHOLE:
        return found[0]
    text = _WHOLE[found["name"]]().rstrip("\n") + "\n"
    return found["head"] + indent(text, found["margin"] + " " * 4)


def _managed() -> str:
    """A comment stands above the resources that kube-scheduler is not to count."""
    lines = []
    for name in MANAGED_RESOURCES:
        ignored = name in UNCOUNTED_RESOURCES
        lines += ["# the extender counts it\n"] if ignored else []
        lines.append(f"- {{name: {name}, ignoredByScheduler: {str(ignored).lower()}}}\n")
    return "".join(lines)


if __name__ == "__main__":
    main()
