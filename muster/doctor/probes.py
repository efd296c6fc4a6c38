"""Checks the job's own pages: readiness, health, and two of its metrics."""

from __future__ import annotations

import contextlib
import http.client
import urllib.error
import urllib.request
from collections.abc import Iterator

from muster.doctor.finding import Finding, Level
from muster.errors import BadInput

PAGE_TIMEOUT_S = 10
ROWS_BEHIND = 10_000
OVERDUE_S = 60.0


def base_of(url: str) -> str:
    """The address of the job's pages, from what the user gave as ``--metrics``.

    Raises:
        BadInput: it is not an HTTP URL, or has a name or password in it, which the job does not ask
            for and which messages would show.
    """
    base = url if "://" in url else f"http://{url}"
    base = base.removesuffix("/").removesuffix("/metrics")
    if "@" in base:
        raise BadInput("--metrics: expected http://HOST:PORT, without a name and password")
    if not base.startswith(("http://", "https://")):
        raise BadInput(f"--metrics {url}: expected http://HOST:PORT")
    return base


def metrics(url: str) -> Iterator[Finding]:
    """Findings from the job's own pages: readiness, health, and two of its metrics.

    Raises:
        BadInput: as `base_of`.
    """
    base = base_of(url)
    try:
        pages = {path: _page(f"{base}{path}") for path in ("/metrics", "/healthz", "/readyz")}
    except (OSError, ValueError, http.client.HTTPException) as error:
        what = f"does not answer: {getattr(error, 'reason', error) or type(error).__name__}"
        yield Finding("job", base, Level.FAIL, what, "is it running, with muster.metrics.port set?")
        return
    if pages["/metrics"][0] != 200:
        what = f"/metrics answers {pages['/metrics'][0]}: this is not the job's metrics port"
        yield Finding("job", base, Level.FAIL, what, "give the host and port of the job's metrics")
        return
    for path, action in (
        ("/readyz", "wait while it catches up; its log says what it waits for"),
        ("/healthz", "restart it with the checkpoint it had, then read its log"),
    ):
        status, text = pages[path]
        level = Level.OK if status == 200 else Level.FAIL
        yield Finding("job", f"{base}{path}", level, text.strip(), action)
    values = _values(pages["/metrics"][1])
    behind = values.get("muster_rows_behind", 0.0)
    yield Finding(
        "job",
        "lag",
        Level.OK if behind <= ROWS_BEHIND else Level.WARN,
        f"rows that wait to be read: {behind:.0f}",
        "more cores, and spark.sql.shuffle.partitions up to their number; "
        "muster_batch_phase_seconds says where the time goes",
    )
    overdue_s = values.get("muster_clock_overdue_seconds", 0.0)
    yield Finding(
        "clock",
        base,
        Level.OK if overdue_s <= OVERDUE_S else Level.FAIL,
        f"the oldest wake-up is {overdue_s:.0f} s overdue",
        "the query is behind, or the clock cannot write ticks: the job's log says which",
    )


def _page(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=PAGE_TIMEOUT_S) as page:  # noqa: S310  http only
            return page.status, page.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def _values(text: str) -> dict[str, float]:
    """Metrics without labels, by name; lines without a number do not count."""
    values: dict[str, float] = {}
    for words in (line.split() for line in text.splitlines() if not line.startswith("#")):
        if len(words) == 2:
            with contextlib.suppress(ValueError):
                values[words[0]] = float(words[1])
    return values
