"""The files to deploy with are sound as far as this can be said without the engines that run them."""

import json
import re
import shutil
import ssl
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import trustme
import yaml

from api.settings import Settings
from api.webhooks.courier import LAST_SECONDS
from kintsugi import __version__
from tests.api.http.test_openapi import SNAPSHOT

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
UNIT = (DEPLOY / "kintsugi.service").read_text()
KUBERNETES = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
STOPPING_SECONDS = Settings().shutdown_seconds + LAST_SECONDS
ROOM_SECONDS = 5


def instructions():
    """The Dockerfile's instructions with their arguments, continued lines joined and comments left out."""
    lines = [line for line in DOCKERFILE.splitlines() if line.strip() and not line.startswith("#")]
    return [tuple(line.split(None, 1)) for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines()]


def of_kind(kind):
    (found,) = [document for document in KUBERNETES if document["kind"] == kind]
    return found


def is_served(path):
    return path.partition("?")[0] in json.loads(SNAPSHOT.read_text())["paths"]


def settings_named(text):
    return {name.removeprefix("KINTSUGI_").lower() for name in re.findall(r"\bKINTSUGI_[A-Z_]+\b", text)}


@pytest.mark.parametrize("path", sorted(DEPLOY.iterdir()), ids=lambda path: path.name)
def test_every_setting_that_is_named_is_one(path):
    assert settings_named(path.read_text()) - {"compiled"} <= set(Settings.model_fields)


def test_the_image_runs_without_torch_and_without_root():
    names = [name for name, _ in instructions()]
    assert set(names) <= {"FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL"} | {
        "HEALTHCHECK",
        "ENTRYPOINT",
        "CMD",
    }
    final = instructions()[len(names) - 1 - names[::-1].index("FROM") :]
    (user,) = [value for name, value in final if name == "USER"]
    assert user.isdigit()
    assert int(user) > 0
    assert not re.search(r"\[[^]]*torch", DOCKERFILE)
    assert "torch" not in "".join(re.findall(r"^dependencies = \[(.*?)^\]", (ROOT / "pyproject.toml").read_text(), re.S | re.M))


def test_the_image_is_of_a_python_that_the_project_takes_and_fixed_bases():
    bases = [value.split()[0] for name, value in instructions() if name == "FROM"]
    assert all(re.fullmatch(r"python:3\.1[1-9]-slim-\w+", base) for base in bases)


def test_what_the_image_is_built_from_is_there():
    allowed = [line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")]
    assert all((ROOT / name).exists() for name in allowed)
    for name, value in instructions():
        sources = [word for word in value.split() if not word.startswith("--")][:-1]
        if name == "COPY" and sources != ["."]:
            assert all((ROOT / source).exists() and source.startswith(tuple(allowed)) for source in sources)


def test_the_image_compiles_whatever_an_installation_does():
    compiling = re.compile(r"python -c '(.*warm_up.*)'")
    (command,) = compiling.findall((ROOT / "scripts" / "install").read_text())
    assert ("RUN", f"python -c '{command}'") in instructions()


def test_the_health_check_is_in_the_image():
    (check,) = [value for name, value in instructions() if name == "HEALTHCHECK"]
    *_, program = json.loads(check.partition("CMD ")[2])
    assert ("COPY", f"deploy/healthcheck.py {program}") in instructions()


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_the_health_check_asks_what_the_service_serves(tmp_path, is_encrypted):
    ready = {"/readyz": 200}
    assert all(map(is_served, ready))
    with serving(ready, tmp_path if is_encrypted else None) as settings:
        assert is_healthy(settings)
        ready["/readyz"] = 503
        assert not is_healthy(settings)


@contextmanager
def serving(statuses, folder):
    """Answers by path; over TLS where there is a folder for its certificate. The settings of such a service."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(statuses[self.path])
            self.end_headers()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        settings = {"KINTSUGI_PORT": str(server.server_port)}
        if folder is not None:
            certificate = folder / "server.pem"
            trustme.CA().issue_cert("kintsugi.example").private_key_and_cert_chain_pem.write_to_path(certificate)
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
            settings["KINTSUGI_TLS_CERTIFICATE"] = str(certificate)
        threading.Thread(target=server.serve_forever, args=(0.05,)).start()
        try:
            yield settings
        finally:
            server.shutdown()


def is_healthy(settings):
    check = [sys.executable, DEPLOY / "healthcheck.py"]
    return subprocess.run(check, env=settings, capture_output=True, timeout=240.0, check=False).returncode == 0


def test_the_entrypoint_hands_arguments_and_signals_on(tmp_path):
    (tmp_path / "numba").mkdir()
    (tmp_path / "numba" / "loop.nbi").write_text("compiled")
    program = tmp_path / "bin" / "kintsugi"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\ncat "$NUMBA_CACHE_DIR/loop.nbi"\necho " $$ $*"\n')
    program.chmod(0o755)
    environment = {"PATH": f"{program.parent}:/usr/bin:/bin", "KINTSUGI_COMPILED": str(tmp_path / "numba"), "TMPDIR": str(tmp_path)}
    before = {*tmp_path.iterdir()}
    for _ in range(2):
        with subprocess.Popen(
            [DEPLOY / "entrypoint.sh", "serve", "--port", "0"], env=environment, stdout=subprocess.PIPE
        ) as process:
            output = process.communicate(timeout=240.0)[0].decode()
        assert output == f"compiled {process.pid} serve --port 0\n"
    (copy,) = {*tmp_path.iterdir()} - before  # a container that is started again keeps its files
    assert copy.stat().st_mode & 0o777 == 0o700


def test_the_compose_file_follows_the_specification():
    specification = jsonschema.Draft7Validator(json.loads(Path(__file__).with_name("compose-spec.json").read_text()))
    specification.validate(COMPOSE)
    assert not specification.is_valid({**COMPOSE, "service": {}})


def test_the_composed_service_waits_for_its_database_and_stops_in_time():
    service = COMPOSE["services"]["kintsugi"]
    assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).samefile(DEPLOY / "Dockerfile")
    assert service["depends_on"]["postgres"]["condition"] == "service_healthy"
    assert (
        seconds(service["stop_grace_period"])
        >= int(service["environment"]["KINTSUGI_SHUTDOWN_SECONDS"]) + LAST_SECONDS + ROOM_SECONDS
    )
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert set(COMPOSE["volumes"]) == {volume.partition(":")[0] for volume in COMPOSE["services"]["postgres"]["volumes"]}


def seconds(text):
    return int(text.removesuffix("s"))


def test_images_are_of_this_version():
    assert COMPOSE["services"]["kintsugi"]["image"] == f"kintsugi:{__version__}"
    (container,) = of_kind("Deployment")["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"kintsugi:{__version__}"


@pytest.mark.parametrize("document", KUBERNETES, ids=lambda document: document["kind"])
def test_kubernetes_takes_every_object(document):
    kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


def test_an_object_that_kubernetes_does_not_take_is_noticed():
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**of_kind("Service"), "specs": {}}, kubernetes_validate.latest_version(), strict=True)


def test_pods_are_probed_where_the_service_answers_and_have_time_to_drain():
    pod = of_kind("Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert is_served(container[probe]["httpGet"]["path"])
        assert container[probe]["httpGet"]["port"] == container["ports"][0]["name"]
    pause = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    unready = container["readinessProbe"]["periodSeconds"] * container["readinessProbe"]["failureThreshold"]
    assert pause >= unready
    assert pod["terminationGracePeriodSeconds"] >= pause + STOPPING_SECONDS + ROOM_SECONDS
    assert f"KINTSUGI_PORT={container['ports'][0]['containerPort']}" in DOCKERFILE
    assert f"USER {pod['securityContext']['runAsUser']}" in DOCKERFILE


def test_no_service_overrides_a_setting_in_its_pods():
    """Kubernetes tells pods of every Service by variables such as `NAME_PORT=tcp://10.0.0.1:8000`, before what the image sets."""
    link = f"{of_kind('Service')['metadata']['name'].upper()}_PORT"
    assert settings_named(link) <= set(Settings.model_fields)
    assert of_kind("Deployment")["spec"]["template"]["spec"]["enableServiceLinks"] is False


def test_pods_of_two_versions_never_share_the_database():
    assert of_kind("Deployment")["spec"]["strategy"] == {"type": "Recreate"}


def test_pods_are_found_by_service_budget_and_each_other():
    deployment = of_kind("Deployment")["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    assert deployment["selector"]["matchLabels"] == labels
    assert of_kind("Service")["spec"]["selector"] == labels
    budget = of_kind("PodDisruptionBudget")["spec"]
    assert budget["selector"]["matchLabels"] == labels
    assert budget["minAvailable"] < deployment["replicas"]


def test_the_unit_names_only_files_that_are_installed():
    assert set(re.findall(r"/opt/kintsugi/(\S+)", UNIT)) == {"bin/kintsugi"}


def test_the_unit_stops_in_time():
    given = dict(re.findall(r"^(\w+)=(.*)$", UNIT, re.M))
    assert int(given["TimeoutStopSec"]) >= STOPPING_SECONDS + ROOM_SECONDS
    assert given["KillSignal"] == "SIGTERM"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_takes_the_unit_and_finds_it_hardened(tmp_path):
    program = str(Path(sys.executable).with_name("kintsugi"))
    unit = tmp_path / "kintsugi.service"
    unit.write_text(UNIT.replace("/opt/kintsugi/bin/kintsugi", program))
    verified = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=240.0, check=False)
    assert (verified.returncode, verified.stderr) == (0, "")
    judged = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=20", unit],
        capture_output=True,
        text=True,
        timeout=240.0,
        check=False,
    )
    assert judged.returncode == 0, judged.stdout
