"""The files that make image builds reproducible, and what the images start, without a build."""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import re
import struct
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from muster.streams import job
from muster.streams.job_settings import job_config
from muster.streams.observability.health import Health
from muster.streams.observability.http import Port
from muster.streams.observability.metrics import Metrics

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def cacerts() -> ModuleType:
    """The script `docker/cacerts.py` as a module."""
    spec = importlib.util.spec_from_file_location("cacerts", ROOT / "docker" / "cacerts.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def store(*entries: tuple[str, int, bytes], kind: int = 2) -> bytes:
    """A JKS store of (name, added at, certificate), as `keytool` writes it."""
    body = struct.pack(">III", 0xFEEDFEED, 2, len(entries))
    for name, at_s, certificate in entries:
        body += struct.pack(">IH", kind, len(name)) + name.encode()
        body += struct.pack(">q", at_s * 1000) + struct.pack(">H", 5) + b"X.509"
        body += struct.pack(">I", len(certificate)) + certificate
    salt = "changeit".encode("utf-16-be") + b"Mighty Aphrodite"
    return body + hashlib.sha1(salt + body).digest()


def test_a_trust_store_without_time_and_chance(cacerts: ModuleType) -> None:
    """Two stores of the same certificates become the same bytes, which are again a JKS store."""
    one = store(("b", 100, b"BB"), ("a", 200, b"A"))
    other = store(("a", 300, b"A"), ("b", 400, b"BB"))
    assert cacerts.settled(one, 7) == cacerts.settled(other, 7)
    assert cacerts.settled(one, 7) == store(("a", 7, b"A"), ("b", 7, b"BB"))


def test_other_stores_are_refused(cacerts: ModuleType) -> None:
    """A store of another format, or one that holds a key, is refused."""
    with pytest.raises(ValueError, match="not a JKS store"):
        cacerts.settled(b"\x30\x82" + bytes(20), 7)
    with pytest.raises(ValueError, match="holds a key"):
        cacerts.settled(store(("a", 1, b"A"), kind=1), 7)


def test_what_the_build_copies_is_let_in() -> None:
    """Every file that the Dockerfile copies exists and is allowed by .dockerignore."""
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line[0] == "!"}
    wanted: set[str] = set()
    for line in (ROOT / "docker" / "Dockerfile").read_text().splitlines():
        words = line.split()
        if words[:1] == ["COPY"] and not words[1].startswith("--from"):
            wanted |= set(words[1:-1])
        if "--mount=type=bind" in line:
            wanted.add(line.partition("source=")[2].partition(",")[0])
    assert wanted <= allowed
    assert not [name for name in wanted if not (ROOT / name).exists()]


def test_every_package_is_copied() -> None:
    """The Dockerfile copies all five source folders of the wheel."""
    text = (ROOT / "docker" / "Dockerfile").read_text()
    for room in ("muster", "protocol", "assignor", "state", "streams"):
        assert f"COPY {room} {room}\n" in text


SPARKS = {
    "SPARK_DRIVER_URL": "spark://driver",
    "SPARK_EXECUTOR_ID": "7",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_EXECUTOR_MEMORY": "900m",
    "SPARK_APPLICATION_ID": "app",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.9",
    "SPARK_EXECUTOR_POD_NAME": "pod-7",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_CONF_DIR": "/conf",
    "SPARK_JAVA_OPT_10": "-Db=2 words",
    "SPARK_JAVA_OPT_9": "-Da=1",
}
"""The environment that Spark gives an executor's pod."""


def entered(folder: Path, *words: str) -> list[str]:
    """What the image's entry point starts: the program, its arguments and its folder."""
    for name in ("java", "muster"):
        (folder / name).write_text(f'#!/bin/sh\nprintf "%s\\n" {name} "$@" "$PWD"\n')
        (folder / name).chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    env = {"PATH": path, "TMPDIR": str(folder), **SPARKS}
    command = ["bash", str(ROOT / "docker" / "entrypoint.sh"), *words]
    done = subprocess.run(command, env=env, cwd="/", capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_the_images_words_are_musters(tmp_path: Path) -> None:
    """Words other than `executor` are arguments of `muster`; without words it has none."""
    assert entered(tmp_path, "run", "--help") == ["muster", "run", "--help", "/"]
    assert entered(tmp_path) == ["muster", "/"]


def test_the_image_is_an_executor_of_spark(tmp_path: Path) -> None:
    """`executor` starts Spark's executor, its options in order, in a folder below TMPDIR."""
    java, *options, place = entered(tmp_path, "executor")
    main = options.index("org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend")
    assert (java, options[:4]) == ("java", ["-Da=1", "-Db=2 words", "-Xms900m", "-Xmx900m"])
    assert options[main - 1].startswith("/conf:")
    assert options[main - 1].endswith("/pyspark/jars/*")
    option_values = dict(zip(options[main + 1 :: 2], options[main + 2 :: 2], strict=True))
    assert option_values == {
        "--driver-url": "spark://driver",
        "--executor-id": "7",
        "--cores": "2",
        "--app-id": "app",
        "--hostname": "10.0.0.9",
        "--podName": "pod-7",
        "--resourceProfileId": "0",
    }
    assert Path(place).parent == tmp_path


def test_kubernetes_starts_a_job_that_can_be() -> None:
    """The manifest's options are valid for the job, and its executors run the same image."""
    text = (ROOT / "docker" / "kubernetes.yaml").read_text()
    listed = text.partition("args:")[2].partition("ports:")[0]
    run, *options = re.findall(r"^ +- (.*)$", listed, re.MULTILINE)
    parser = argparse.ArgumentParser()
    job.configure(parser)
    given = parser.parse_args(options)
    config = job_config(checkpoint=given.checkpoint, master=given.master, conf=given.conf)
    (image,) = re.findall(r"^ +image: (\S+)$", text, re.MULTILINE)
    assert (run, config.spark["spark.kubernetes.container.image"]) == ("run", image)
    assert not config.is_posix


def test_kubernetes_waits_for_a_start_of_any_length() -> None:
    """A job that loads many groups, or catches up, is well and not ready: no probe may end it."""
    text = (ROOT / "docker" / "kubernetes.yaml").read_text()
    paths = dict(re.findall(r"(\w+)Probe: \{httpGet: \{path: (/\w+),", text))
    starting = Health(60, lambda: True)
    starting.running(now_s=0)
    starting.moved(now_s=10_000)
    assert not starting.ready(now_s=10_001).fine
    assert starting.well(now_s=10_001).fine
    assert paths == {"startup": "/healthz", "liveness": "/healthz", "readiness": "/readyz"}


@pytest.mark.parametrize("is_ready", [True, False])
def test_the_images_health_check_asks_no_proxy(is_ready: bool) -> None:
    """Docker gives containers the proxies of its user, which cannot reach the container itself."""
    health = Health(60, lambda: True)
    health.is_standby = is_ready
    text = (ROOT / "docker" / "Dockerfile").read_text()
    (words,) = re.findall(r"HEALTHCHECK .*\n +CMD (\[.*\])", text)
    _, *arguments = json.loads(words)
    with Port(Metrics(), health, "127.0.0.1", 0) as port:
        asked = [each.replace(":8080/", f":{port.number}/") for each in arguments]
        env = {**os.environ, "http_proxy": "http://127.0.0.1:1", "no_proxy": ""}
        done = subprocess.run([sys.executable, *asked], env=env, capture_output=True)
    assert (done.returncode == 0) == is_ready, done.stderr.decode()
