"""`muster shadow` looks at real Kafka Streams applications; `make adopt` runs this."""

from __future__ import annotations

import json
import subprocess
import uuid
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from support.adopt.fleet import MATRIX
from support.suite.waiting import until

from muster.broker import jars
from muster.broker.ends_with_parent import Tethered
from muster.broker.java import java
from muster.cli.main import main

pytestmark = [pytest.mark.broker, MATRIX]
SOURCE = Path(__file__).parents[1] / "support" / "adopt" / "clients" / "StreamsApp.java"
JVM = ("-Xms16m", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


@pytest.mark.parametrize(("protocol", "kind"), [("streams", "streams"), ("classic", "classic")])
def test_an_application(bootstrap, tmp_path, capsys, protocol, kind):
    """KIP-1071's broker tells tasks and topology; a classic application tells its partitions."""
    app, topic = f"app-{uuid.uuid4().hex[:6]}", f"words-{uuid.uuid4().hex[:6]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 4, 1)])[topic].result(30)
    places = ":".join(map(str, jars.jars("bench")))
    subprocess.run(["javac", "-cp", places, "-d", tmp_path, SOURCE], check=True)
    command = [str(java()), *JVM, "-cp", f"{places}:{tmp_path}", "StreamsApp", bootstrap, app]
    log = tmp_path / "app.log"

    def shadowed() -> dict[str, Any]:
        words = ["--group", app, "--format", "json", "--bootstrap-server", bootstrap]
        if main(["shadow", *words]) != 0:
            capsys.readouterr()
            return {}
        return json.loads(capsys.readouterr().out)

    with log.open("wb") as output:
        words = [topic, protocol, str(tmp_path / "state")]
        process = Tethered([*command, *words], output=output, cwd=tmp_path)
        try:
            until(
                lambda: [m["tasks"] for m in shadowed().get("members", ())] == [4],
                "one member has four tasks",
                pause_s=0.5,
                story=lambda: (log.read_text()[-3000:], shadowed()),
            )
            assert (shadowed()["kind"], shadowed()["unowned"]) == (kind, 0)
        finally:
            process.kill()
