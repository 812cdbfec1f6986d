"""The verbs of `python -m deploy.local`."""

import argparse
import sys
import time
from collections.abc import Sequence

from deploy.local.build import binaries
from deploy.local.cluster import ControlPlane
from deploy.local.commands import Options
from deploy.local.ending import ended_by_signals
from deploy.local.errors import LocalError
from deploy.local.tools import KUBEADM_TOOLS, NODE_TOOLS, TOOLS, Tool

_LOOK_EVERY_S = 0.5
_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb and return the exit code. An error is one sentence on stderr."""
    arguments = _parser().parse_args(argv)
    try:
        with ended_by_signals():
            return _run(arguments)
    except LocalError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED


def _run(arguments: argparse.Namespace) -> int:
    match arguments.verb:
        case "build":
            node = NODE_TOOLS if arguments.node else ()
            build((*TOOLS, *KUBEADM_TOOLS, *node))
        case "serve":
            serve(Options(arguments.listen, arguments.port, tuple(arguments.name)))
        # These two import Bursar's dependencies; the others must work without them.
        case "demo":
            from deploy.local.demo.command import main as demo

            return demo(_progress)
        case "up":
            from deploy.local import up

            up.up(_progress)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m deploy.local", description="A Kubernetes control plane on this machine."
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    builder = verbs.add_parser("build", help="find every binary, build missing ones, print their paths")
    builder.add_argument("--node", action="store_true", help="also the binaries of a real node")
    verbs.add_parser("demo", help="show what Bursar does, step by step, and check each step")
    verbs.add_parser(
        "up",
        help="run Bursar on a new cluster with the demo's nodes and budgets, until Ctrl-C",
    )
    server = verbs.add_parser(
        "serve", help="run a control plane without nodes and without Bursar, until Ctrl-C"
    )
    server.add_argument("--listen", default="127.0.0.1", help="address of the API server (%(default)s)")
    server.add_argument("--port", type=int, default=0, help="its port (default: a free one)")
    server.add_argument(
        "--name", action="append", default=[], help="another name or address for its certificate"
    )
    return parser


def build(tools: tuple[Tool, ...] = TOOLS) -> None:
    """Print each binary's name and path."""
    for name, path in binaries(_progress, tools).items():
        print(f"{name}\t{path}")


def serve(options: Options) -> None:
    """Run a control plane with a plain scheduler, print how to reach it, and wait for Ctrl-C or the end of
    one of its processes.
    """
    with ControlPlane(options, say=_progress) as control_plane:
        control_plane.start_scheduler()
        print(f"the API server answers at {control_plane.url}; press Ctrl-C to end it", file=sys.stderr)
        print(f"export KUBECONFIG={control_plane.admin_kubeconfig}")
        print(f"export PATH={control_plane.kubectl_path.parent}:$PATH", flush=True)
        while True:
            time.sleep(_LOOK_EVERY_S)
            control_plane.check()


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
