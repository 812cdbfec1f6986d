"""All of Bursar on one control plane, two of what may be two: webhooks behind a Service, extenders that elect
a leader, and a timekeeper on PostgreSQL, with certificates that live for a part of the day."""

import re
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from deploy.local.cluster import ControlPlane
from deploy.local.commands import Options
from deploy.local.limits import LONGEST_S
from deploy.local.scheduler import GPU_PROFILE
from deploy.local.stack import Stack, Tuning
from tests.postgresql import fresh_postgresql, server
from tests.scheduler_ext import replicas as scheduling
from tests.support import short_lives
from tests.support.control_plane import kubectl
from tests.support.waiting import eventually
from tests.webhook import replicas as admitting

AWAY_S = 5.0  # how long the database stays away once that was noticed
SCHEDULER = "gpu-scheduler"
_SUM = re.compile(r'^bursar_extender_verb_seconds_(sum|count)\{verb="(\w+)"\} (\S+)$', re.MULTILINE)


CERTIFICATE_FLAGS = ("--every", "1", "--extra-name", "127.0.0.1", "--extra-name", "localhost")


@dataclass(frozen=True)
class Lives:
    """How long certificates live, in seconds."""

    ca: int
    leaf: int
    overlap: int

    @classmethod
    def of_day(cls, length_s: float) -> "Lives":
        """Six leaves and two CAs a day, but none shorter than processes need to read it."""
        return cls(max(60, int(length_s / 2)), max(30, int(length_s / 6)), max(5, int(length_s / 24)))

    @property
    def program(self) -> tuple[str, ...]:
        """The certificate process."""
        return short_lives.program(self.overlap, self.ca, self.leaf)


class DayStack(Stack):
    """With certificates of short lives."""

    lives: Lives

    def certify(self) -> None:
        """As in `Stack`."""
        account = str(self._kubeconfig("bursar-certificates"))
        command = [
            "-m",
            *self.lives.program,
            "--once",
            "--write",
            str(self.tls),
            "--kubeconfig",
            account,
        ]
        self._run_once("certificates", [*command, *CERTIFICATE_FLAGS])


@dataclass
class World:
    """Everything that runs. ``url``: of the ledger's database."""

    stack: DayStack
    url: str
    webhooks: list[admitting.Replica]
    extenders: list[scheduling.Replica]
    certificates: admitting.Certificates

    def roles(self) -> Mapping[str, int]:
        """The process ID of each of our roles that runs."""
        pids = {each.name: each.process.pid for each in self.webhooks}
        pids |= {each.name: each.extender.pid for each in self.extenders}
        pids["certificates"] = self.certificates.process.pid
        if "timekeeper" in self.stack.processes:
            pids["timekeeper"] = self.stack.processes["timekeeper"].pid
        return {name: pid for name, pid in pids.items() if pid}

    def leader(self) -> scheduling.Replica:
        """The extender that leads, once one does."""
        return eventually(lambda: next((each for each in self.extenders if each.leads()), None), "a leader")

    def serials(self) -> frozenset[int]:
        """Of the certificates that are served now."""
        found = []
        for each in self.webhooks:
            try:
                found.append(each.certificate().serial_number)
            except OSError:
                continue  # it is being replaced
        return frozenset(found)

    def verbs(self) -> dict[str, dict[str, tuple[float, float]]]:
        """By extender and verb: the seconds that its calls took together, and how many they were."""
        found: dict[str, dict[str, tuple[float, float]]] = {}
        for each in self.extenders:
            said: dict[str, dict[str, float]] = {}
            for kind, verb, value in _SUM.findall(each.get("/metrics")[1]):
                said.setdefault(verb, {})[kind] = float(value)
            found[each.name] = {verb: (kinds["sum"], kinds["count"]) for verb, kinds in said.items()}
        return found

    def timekeeper_is_ready(self) -> bool:
        """Whether it says so."""
        return self.stack.is_ready(self.stack.timekeeper_url)


@contextmanager
def running(length_s: float) -> Iterator[World]:
    """A world that is ready."""
    with ExitStack() as stack:
        options = Options(api_flags=admitting.BY_ENDPOINTS.api_flags, node_lease_s=120)
        cp = stack.enter_context(ControlPlane(options))
        url = stack.enter_context(fresh_postgresql())
        flags = (f"--database={url}", "--pod-uid=the-replica")
        made = DayStack(cp, Tuning(flags=(("timekeeper", flags),)))
        made.lives = Lives.of_day(length_s)
        stack.enter_context(made)
        keeping = stack.enter_context(
            admitting.Certificates(
                cp,
                made.folder,
                "keeper",
                *CERTIFICATE_FLAGS,
                program=made.lives.program,
                kubeconfig=cp.folder / "bursar-certificates.kubeconfig",
            )
        )
        hooks = list(_webhooks(stack, made))
        yield World(made, url, hooks, list(_extenders(stack, made)), keeping)


def _webhooks(stack: ExitStack, made: Stack) -> Iterator[admitting.Replica]:
    """Two behind the Service, in place of the stack's own."""
    cp = made.cp
    file = f"{admitting.MANIFESTS}/webhook-configurations.yaml"
    kubectl(cp, "apply", "--server-side", "--force-conflicts", "-f", file)
    admitting.service(cp)
    made.stop("webhook")
    flags = (
        *("--workers", "1", "--timekeeper-url", made.timekeeper_url),
        *("--token-file", f"{made.folder}/webhook.token"),
        *("--kubeconfig", str(cp.folder / "bursar-webhook.kubeconfig")),
    )
    for name in ("one", "two"):
        yield stack.enter_context(
            admitting.Replica(cp, made.folder, f"webhook-{name}", made.tls / "webhook", *flags)
        )


def _extenders(stack: ExitStack, made: Stack) -> Iterator[scheduling.Replica]:
    """Two that elect a leader, in place of the stack's own, and behind what stands for a Service."""
    cp = made.cp
    lease = ("role", "extender", "--verb=get,create,update", "--resource=leases.coordination.k8s.io")
    to = ("--role=extender", f"--serviceaccount={scheduling.HOME}:bursar-scheduler")
    for words in (lease, ("rolebinding", "extender", *to)):
        kubectl(cp, "create", *words, "-n", scheduling.HOME)
    cp.stop_scheduler(SCHEDULER)
    made.stop("extender")
    flags = [
        *("--kubeconfig", str(cp.folder / "bursar-scheduler.kubeconfig")),
        *("--timekeeper-url", made.timekeeper_url, "--timekeeper-ca", str(made.ca_file)),
        *("--token-file", str(made.folder / "extender.token")),
        *("--leader-election=lease", "--lease-duration=4s"),
    ]
    found = [scheduling.Replica(cp, made.folder, f"extender-{at}", flags) for at in range(2)]
    for each in found:
        each.start()
        stack.callback(each.end)
    service = scheduling.Service(found)
    stack.callback(service.end)
    eventually(lambda: any(each.leads() for each in found), "an extender to lead")
    cp.start_scheduler(
        "day-scheduler", profiles=(GPU_PROFILE,), extender_url=f"http://127.0.0.1:{service.port}"
    )
    yield from found


# -- faults: each breaks or replaces something, waits until all is well again, and asserts that it happened


def leader_is_killed(world: World) -> None:
    """SIGKILL; the other one leads."""
    leader = world.leader()
    (other,) = (each for each in world.extenders if each is not leader)
    leader.signal(signal.SIGKILL)
    eventually(other.leads, "the other extender to lead")
    leader.end()
    leader.start()
    eventually(lambda: leader.get("/readyz")[0], "it to answer")


def extenders_are_replaced(world: World) -> None:
    """One after the other, by processes of the same command."""
    for each in world.extenders:
        before = each.extender.pid
        each.signal(signal.SIGTERM)
        eventually(lambda each=each: not each.extender.alive, "it to end")  # type: ignore[misc]
        each.end()
        each.start()
        eventually(lambda each=each: each.get("/readyz")[0], "it to answer")  # type: ignore[misc]
        world.leader()
        assert each.extender.pid != before


def webhooks_are_replaced(world: World) -> None:
    """One after the other: it leaves the Service, ends, and its successor comes when it is ready."""
    for each in world.webhooks:
        before = each.process.pid
        each.announce(ready=False)
        assert each.terminate() == 0, each.log()[-2000:]
        each.begin()
        assert each.process.pid != before


def timekeeper_is_replaced(world: World) -> None:
    """SIGTERM, and its successor."""
    assert world.stack.stop("timekeeper") == 0
    _timekeeper_starts(world)


def timekeeper_is_killed(world: World) -> None:
    """SIGKILL, and its successor."""
    assert world.stack.stop("timekeeper", signal.SIGKILL) == -signal.SIGKILL
    _timekeeper_starts(world)


def _timekeeper_starts(world: World) -> None:
    assert not world.timekeeper_is_ready()
    world.stack.start("timekeeper")
    eventually(world.timekeeper_is_ready, "the timekeeper to be ready")


def database_is_away(world: World) -> None:
    """PostgreSQL stops, as its operator stops it, until the timekeeper has noticed it."""
    failed = world.stack.log("timekeeper").count("event=tick-failed")
    server().stop()
    try:
        eventually(
            lambda: world.stack.log("timekeeper").count("event=tick-failed") > failed,
            "the timekeeper to miss its database",
        )
        eventually(lambda: not world.timekeeper_is_ready(), "the timekeeper to say so")
        time.sleep(AWAY_S)
    finally:
        server().start()
    eventually(world.timekeeper_is_ready, "the timekeeper to be back")


def scheduler_is_killed(world: World) -> None:
    """kube-scheduler, SIGKILL, and its successor."""
    cp, before = world.stack.cp, world.stack.cp.processes["day-scheduler"]
    cp.stop_process("day-scheduler")
    assert before.wait(LONGEST_S) == -signal.SIGKILL
    cp.restart_process("day-scheduler")
    cp.check()


FAULTS = (
    leader_is_killed,
    database_is_away,
    webhooks_are_replaced,
    timekeeper_is_replaced,
    extenders_are_replaced,
    scheduler_is_killed,
    leader_is_killed,
    timekeeper_is_killed,
    database_is_away,
    webhooks_are_replaced,
)
