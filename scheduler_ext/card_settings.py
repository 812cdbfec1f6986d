"""The settings of cards: the names of their models, where their use is measured, and what each figure counts
for the policy `load`."""

import re
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path

from scheduler_ext.model.node import ModelNames
from scheduler_ext.scoring.card_points import MODEL_FIGURES, WEIGHTS, Figures, ModelFigures, Scale
from timekeeper.runtime.flags import Parser, namespace, optional, path_or_none, wrong

MAX_WEIGHT = 1_000
MAX_FIGURE = 10**6
_URL = r"https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?(/[A-Za-z0-9._/-]*)?"


@dataclass(frozen=True, slots=True)
class PrometheusSettings:
    """Prometheus at ``url``, or where that is empty at the Service found in ``namespace``. ``ca``: the CA
    bundle of its certificate, None for the system's. ``token_file``: the bearer token for it; None: none."""

    url: str
    namespace: str = ""
    ca: Path | None = None
    token_file: Path | None = None


def add_flags(parser: Parser) -> None:
    """Adds the flags."""
    parser.add(
        "--model-names",
        optional(_model_names, ()),
        "",
        "names by which pods may request models, each with a part of the model's own name, such as"
        " a100-80=A100-SXM4-80GB; a dot stands for any character",
    )
    parser.add(
        "--prometheus-url",
        optional(_url, ""),
        "",
        "URL of Prometheus, for the use of cards that the policy load goes by; empty: what node agents report"
        " to the timekeeper",
    )
    parser.add(
        "--prometheus-namespace",
        optional(namespace, ""),
        "",
        "namespace in which the Service of Prometheus is found, by its label"
        " app.kubernetes.io/name=prometheus; in place of --prometheus-url",
    )
    parser.add("--prometheus-ca", path_or_none, "", "CA bundle of Prometheus, PEM; empty: the system's")
    parser.add(
        "--prometheus-token-file",
        path_or_none,
        "",
        "token for Prometheus, read before each query; empty: none",
    )
    parser.add(
        "--load-weights",
        _weights,
        "busy=1",
        f"what each figure of a card counts for the policy load, out of {', '.join(WEIGHTS)}",
    )
    parser.add(
        "--model-figures",
        optional(_models, ()),
        "",
        f"figures of models, out of {', '.join(MODEL_FIGURES)}, such as a100=sms:108;bandwidth:2039",
    )


def read(given: Namespace) -> tuple[PrometheusSettings | None, Scale]:
    """The settings in the parsed flags. Raises ValueError with a sentence."""
    url, found_in = given.prometheus_url, given.prometheus_namespace
    if url and found_in:
        raise ValueError("--prometheus-url and --prometheus-namespace exclude each other")
    wanted = PrometheusSettings(url, found_in, given.prometheus_ca, given.prometheus_token_file)
    return wanted if url or found_in else None, Scale(given.load_weights, given.model_figures)


def _model_names(text: str) -> ModelNames:
    pairs = [
        re.fullmatch(r"\s*([A-Za-z0-9._-]{1,63})=([^=,]{1,128})", each, re.ASCII) for each in text.split(",")
    ]
    found = tuple((pair[1].lower(), pair[2].strip().lower()) for pair in pairs if pair is not None)
    if len(found) < len(pairs) or not all(part.strip(".") for _, part in found):
        raise wrong(text, "NAME=PART, separated by commas, with names as a label's value can have")
    return found


def _url(text: str) -> str:
    if not re.fullmatch(_URL, text, re.ASCII):
        raise wrong(text, "an http:// or https:// URL")
    return text


def _weights(text: str) -> tuple[tuple[str, int], ...]:
    found = _amounts(text, ",", "=", MAX_WEIGHT)
    if found is None or not found.keys() <= set(WEIGHTS) or not any(found.values()):
        allowed = f"NAME=NUMBER, separated by commas, with names out of {', '.join(WEIGHTS)}, each once, and"
        raise wrong(text, f"{allowed} numbers from 0 to {MAX_WEIGHT} that are not all 0")
    return tuple((name, weight) for name, weight in found.items() if weight)


def _models(text: str) -> ModelFigures:
    pairs = [each.rpartition("=") for each in text.split(",")]
    found = [(pattern.strip().lower(), _figures(figures)) for pattern, _, figures in pairs]
    models = tuple((pattern, figures) for pattern, figures in found if pattern and figures)
    if len(models) < len(found):
        allowed = "MODEL=NAME:NUMBER;NAME:NUMBER, separated by commas, with names out of"
        raise wrong(text, f"{allowed} {', '.join(MODEL_FIGURES)} and numbers from 0 to {MAX_FIGURE}")
    return models


def _figures(text: str) -> Figures | None:
    found = _amounts(text, ";", ":", MAX_FIGURE)
    return found if found and found.keys() <= set(MODEL_FIGURES) else None


def _amounts(text: str, between: str, sign: str, most: int) -> dict[str, int] | None:
    """The numbers by name; None for a text of another form, or that has a name twice."""
    parts = [
        re.fullmatch(rf"\s*([a-z-]+){sign}([0-9]{{1,9}})\s*", each, re.ASCII) for each in text.split(between)
    ]
    found = {part[1]: int(part[2]) for part in parts if part is not None}
    return found if len(found) == len(parts) and all(each <= most for each in found.values()) else None
