"""Flags, their environment variables, and one sentence for what is wrong."""

import json
from pathlib import Path

import pytest

from timekeeper.core import __version__
from timekeeper.core.admission.policy import AdmissionPolicy, PriorityClass, Sidecar, SidecarImages
from webhook.settings.certificates import read_certificates
from webhook.settings.serve import read

POLICY = AdmissionPolicy(
    known=False,
    mode="enforce",
    scheduler_name="bursar-scheduler",
    in_budget=PriorityClass("gpu-default-priority", 0),
    over_budget=PriorityClass("gpu-lower-priority", -5),
    unknown_standing="inBudget",
    max_grace_s=600,
    runtime_class="",
    sidecar=Sidecar(f"bursar/sidecar:{__version__}", "https://bursar-timekeeper.bursar-system.svc", ""),
    sidecar_images=SidecarImages(f"bursar/sidecar:{__version__}"),
)


def test_everything_has_a_default_that_fits_our_manifests() -> None:
    settings = read([], {})

    assert (settings.listen, settings.workers) == (("::", 8443), 2)
    assert settings.tls_cert == Path("/etc/bursar/tls/tls.crt")
    assert settings.ca == Path("/etc/bursar/tls/ca.crt")
    assert settings.policy == POLICY


def test_the_sidecar_reports_to_the_timekeeper_that_is_polled_and_may_be_left_out() -> None:
    settings = read(["--timekeeper-url", "https://10.0.0.1:8444", "--sidecar-image", "a/b"], {})

    assert settings.policy.sidecar == Sidecar("a/b", "https://10.0.0.1:8444", "")
    assert read(["--sidecar", "off"], {}).policy.sidecar is None


def test_a_secret_for_the_sidecar_is_a_secrets_name() -> None:
    named, none = (read([f"--sidecar-pull-secret={name}"], {}).policy.sidecar for name in ("pull.of-us", ""))

    assert (named and named.pull_secret, none and none.pull_secret) == ("pull.of-us", "")
    for bad in ("Pull", "a/b", "-a", "a" * 254):
        with pytest.raises(SystemExit):
            read([f"--sidecar-pull-secret={bad}"], {})


def test_images_of_sidecars_are_the_configured_one_and_those_of_whole_names() -> None:
    flags = [
        "--sidecar=off",
        "--sidecar-image=a/b:1",
        "--sidecar-mirrors=r.example/b:, mirror.example:5000/a/",
    ]

    images = read(flags, {}).policy.sidecar_images

    assert images == SidecarImages("a/b:1", ("r.example/b:", "mirror.example:5000/a/"))
    assert {each: images.allow(each) for each in ("a/b:1", "r.example/b:2", "mirror.example:5000/a/b")} == {
        "a/b:1": True,
        "r.example/b:2": True,
        "mirror.example:5000/a/b": True,
    }
    assert not any(map(images.allow, ("a/b:2", "r.example/bad:2", "x/r.example/b:2", "", None)))


@pytest.mark.parametrize("given", ["registry.example/bursar", "/", "a/,b"])
def test_a_mirror_that_others_could_begin_like_is_refused(
    given: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        read([f"--sidecar-mirrors={given}"], {})

    assert "a beginning that ends in / : or @" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "cpu", "memory", "disk"),
    [
        ("cpu=100m,memory=128Mi", "100m", "128Mi", "64Mi"),
        ("memory=33554432, cpu=1", "1", "33554432", "64Mi"),
        ("cpu=10m,memory=0.5Gi,ephemeral-storage=1Gi", "10m", "0.5Gi", "1Gi"),
    ],
)
def test_what_the_sidecar_requests_can_be_set(given: str, cpu: str, memory: str, disk: str) -> None:
    sidecar = read(["--sidecar-resources", given], {}).policy.sidecar

    assert sidecar is not None
    assert (sidecar.cpu, sidecar.memory, sidecar.ephemeral_storage) == (cpu, memory, disk)


@pytest.mark.parametrize(
    "given",
    [
        *("", "cpu=100m", "memory=64Mi", "cpu=100m;memory=64Mi", "cpu=9m,memory=64Mi", "cpu=0,memory=64Mi"),
        *("cpu=100m,memory=31Mi", "cpu=100m,memory=lots", "cpu=-1,memory=64Mi", "cpu=20m,memory=64Mi,gpu=1"),
        *("cpu=20m,memory=64Mi,ephemeral-storage=31Mi", "cpu=20m,ephemeral-storage=64Mi"),
        *("cpu=\u0662\u0660m,memory=64Mi", "cpu=20m,memory=64000m", "cpu=NaN,memory=64Mi"),
    ],
)
def test_amounts_that_no_sidecar_could_run_with_are_reported_with_an_example(
    given: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        read(["--sidecar-resources", given], {})

    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        f"bursar-webhook: argument --sidecar-resources: {json.dumps(given, ensure_ascii=False)}"
        " is not cpu=AMOUNT,memory=AMOUNT,ephemeral-storage=AMOUNT, from 10m"
        " and 32Mi on, such as cpu=100m,memory=128Mi\n"
    )


WRONG = {
    ("--listen", "8443"): 'argument --listen: "8443" is not HOST:PORT, such as [::]:8443',
    ("--listen", "a:70000"): 'argument --listen: "a:70000" is not HOST:PORT, such as [::]:8443',
    ("--workers", "0"): 'argument --workers: "0" is not a whole number from 1 to 1000000',
    ("--workers", "two"): 'argument --workers: "two" is not a whole number from 1 to 1000000',
    ("--timekeeper-url", "http://a"): 'argument --timekeeper-url: "http://a" is not an https:// URL',
    ("--in-budget-class", "a=0"): "unrecognized arguments: --in-budget-class a=0",
    ("--stale-after", "2"): "unrecognized arguments: --stale-after 2",
    ("--mode", "strict"): "argument --mode: invalid choice: 'strict' (choose from 'enforce', 'observe')",
    ("--mps", "yes"): "argument --mps: invalid choice: 'yes' (choose from 'off', 'on')",
    ("--mps-pipe-directory", "mps"): "argument --mps-pipe-directory: "
    '"mps" is not an absolute path such as /run/nvidia-mps',
    ("--mps-pipe-directory", "/run/../etc"): "argument --mps-pipe-directory: "
    '"/run/../etc" is not an absolute path such as /run/nvidia-mps',
    ("--sidecar", "yes"): "argument --sidecar: invalid choice: 'yes' (choose from 'native', 'off', 'on')",
    ("--nonsense",): "unrecognized arguments: --nonsense",
}


@pytest.mark.parametrize("given", WRONG)
def test_a_bad_setting_is_one_sentence_and_exit_code_2(
    given: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        read(given, {})

    assert ended.value.code == 2
    assert capsys.readouterr().err == f"bursar-webhook: {WRONG[given]}\n"


def test_limits_by_mps_are_off_by_default_and_the_folder_of_its_pipes_is_a_setting() -> None:
    assert read([], {}).policy.mps_pipes == ""
    assert read(["--mps-pipe-directory", "/run/nvidia-mps"], {}).policy.mps_pipes == ""
    assert read(["--mps", "on"], {}).policy.mps_pipes == "/tmp/nvidia-mps"
    environment = {"BURSAR_MPS": "on", "BURSAR_MPS_PIPE_DIRECTORY": "/run/nvidia-mps"}
    assert read([], environment).policy.mps_pipes == "/run/nvidia-mps"


def test_the_certificate_process_takes_names_from_flags_and_environment() -> None:
    settings = read_certificates(
        ["--once", "--write", "/tmp/x", "--extra-name", "127.0.0.1", "--extra-name", "localhost"],
        {"BURSAR_EXTRA_NAME": "a.example,b.example", "BURSAR_KUBECONFIG": "/k"},
    )

    assert settings.once
    assert settings.folder == Path("/tmp/x")
    assert settings.kubeconfig == Path("/k")
    assert settings.extra_names == ("a.example", "b.example", "127.0.0.1", "localhost")
    assert settings.every_s == 10
    assert read_certificates([], {}).kubeconfig is None
