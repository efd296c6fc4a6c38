"""Checks each request before the app: who may see the console, and which requests may write.

* The ``Host`` of a request must be a name of this console. Otherwise a page of another site could
  give its own name this console's address (DNS rebinding) and read what only this machine may read.
* A page of another site must not make a browser ask for data, such as a plan or the findings of the
  doctor (``Sec-Fetch-Site``). Links to the console's pages may come from anywhere.
* A password file, or a header that a reverse proxy sets, identifies users.
* A request that writes must come from a page of this console: its origin matches, its body is JSON,
  and it carries a token that only such a page can read.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import bcrypt
import structlog
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from muster.errors import BadInput

_log = structlog.get_logger("muster.console")
LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")
OPEN_PATHS = ("/livez",)
DATA_PATHS = ("/api/", "/events/")
USER = "muster.user"
NO_USER = ""
USER_CHARS_MAX = 200
KNOWN_MAX = 1_000
BCRYPT = re.compile(r"\$2[aby]\$(0[4-9]|[12][0-9]|3[01])\$[./A-Za-z0-9]{21}[.Oeu][./A-Za-z0-9]{31}")
"""A whole hash; bcrypt fails for one with another salt or cost, and takes one that is cut for a
wrong password."""
HEADERS: Mapping[str, str] = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


class Passwords:
    """Names and bcrypt hashes of a file, as ``htpasswd -B`` writes it; read again when it changes.

    Raises:
        BadInput: it cannot be read, or a line is malformed.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._read_ns = -1
        self._hashes: dict[str, bytes] = {}
        self._known: set[bytes] = set()
        self._fault = ""
        self._salt = secrets.token_bytes(16)
        self._one_check = anyio.Semaphore(1)
        self._refresh()

    def _refresh(self) -> None:
        try:
            changed_ns = self._path.stat().st_mtime_ns
            if changed_ns == self._read_ns:
                return
            lines = self._path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", error)
            raise BadInput(f"--auth-file {self._path}: cannot be read ({why})") from None
        hashes: dict[str, bytes] = {}
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.startswith("#"):
                continue
            name, _, hashed = line.strip().partition(":")
            if not name or not BCRYPT.fullmatch(hashed):
                raise BadInput(
                    f"--auth-file {self._path}, line {number}: expected NAME:HASH with a whole "
                    "bcrypt hash of 60 characters, as `htpasswd -B` writes it"
                )
            hashes[name] = hashed.encode()
        if not hashes:
            raise BadInput(f"--auth-file {self._path}: expected at least one NAME:HASH line")
        self._hashes, self._known, self._read_ns = hashes, set(), changed_ns

    async def user(self, authorization: str) -> str | None:
        """The user of a Basic authorization header; None = a wrong name or password.

        bcrypt is slow on purpose: a thread runs it, for one request at a time, while all others
        are answered. A page makes many requests, so what was right once is known.
        """
        scheme, _, encoded = authorization.partition(" ")
        if scheme.lower() != "basic":
            return None
        try:
            name, colon, password = base64.b64decode(encoded, validate=True).decode().partition(":")
        except ValueError:
            return None
        try:
            self._refresh()
        except BadInput as error:
            # The file is being written, or is malformed: refuse everyone, and log each cause once.
            if str(error) != self._fault:
                self._fault = str(error)
                _log.warning("no user is let in", why=self._fault)
            return None
        self._fault = ""
        if not colon:
            return None
        hashes, known = self._hashes, self._known
        proof = hmac.digest(self._salt, f"{name}:{password}".encode(), hashlib.sha256)
        if proof in known:
            return name
        # An unknown name takes as long as a wrong password.
        hashed = hashes.get(name, _UNKNOWN_USER_HASH)
        async with self._one_check:
            is_right = await run_in_threadpool(bcrypt.checkpw, password.encode()[:72], hashed)
        if not is_right or name not in hashes:
            return None
        if len(known) >= KNOWN_MAX:
            known.clear()
        known.add(proof)  # of the file as it was when the check began
        return name


_UNKNOWN_USER_HASH = bcrypt.hashpw(secrets.token_bytes(16).hex().encode(), bcrypt.gensalt(10))


@dataclass(frozen=True, slots=True)
class Access:
    """Who may use the console.

    Attributes:
        hosts: host names of the console, without port; empty = any.
        passwords: the password file; None = no passwords.
        proxy_header: header in which a reverse proxy names the user; empty = none.
        proxies: networks from which that header is trusted.
        secret: the key of the tokens.
    """

    hosts: frozenset[str] = frozenset(LOCAL_HOSTS)
    passwords: Passwords | None = None
    proxy_header: str = ""
    proxies: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = ()
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    def token(self, user: str) -> str:
        """The token that a page of this user sends with each write."""
        return hmac.new(self.secret, user.encode(), hashlib.sha256).hexdigest()

    def is_ours(self, host: str) -> bool:
        """Whether the ``Host`` of a request names this console."""
        name = host.rpartition(":")[0] if _has_port(host) else host
        return not self.hosts or name.lower() in self.hosts

    async def user(self, headers: Headers, peer: str) -> str | None:
        """The user of a request from the address `peer`; None = the request is refused."""
        if self.proxy_header:
            named = headers.get(self.proxy_header, "")
            return named[:USER_CHARS_MAX] if named and self._is_proxy(peer) else None
        if self.passwords is not None:
            return await self.passwords.user(headers.get("authorization", ""))
        return NO_USER

    def _is_proxy(self, peer: str) -> bool:
        try:
            address = ipaddress.ip_address(peer)
        except ValueError:
            return False
        return any(address in network for network in self.proxies)

    def write_fault(self, headers: Headers, user: str, scheme: str) -> str:
        """Why a request must not write; empty = it may."""
        if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return "expected JSON"
        if headers.get("sec-fetch-site", "same-origin") != "same-origin":
            return "the request comes from a page of another site"
        origin = headers.get("origin", "")
        host = headers.get("host", "")
        if origin not in (f"{scheme}://{host}", f"https://{host}"):
            return "the request comes from a page of another site"
        if not hmac.compare_digest(
            headers.get("x-muster-token", "").encode(), self.token(user).encode()
        ):
            return "the page is older than this console; load it again"
        return ""


def networks(texts: Iterable[str]) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    """Networks from their texts.

    Raises:
        BadInput: one of them is not a network.
    """
    try:
        return tuple(ipaddress.ip_network(text, strict=False) for text in texts)
    except ValueError as error:
        raise BadInput(f"--auth-proxy-from: expected an address or a network ({error})") from None


def _has_port(host: str) -> bool:
    return host.rpartition(":")[2].isdigit() and not host.endswith("]")


def _is_of_other_site(path: str, headers: Headers) -> bool:
    """Whether a page of another site asks for data; a browser says so, other clients do not."""
    site = headers.get("sec-fetch-site", "none")
    return path.startswith(DATA_PATHS) and site not in ("same-origin", "none")


class Guard:
    """Checks every request before the app sees it, and adds the headers of every answer."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                answered = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    answered[name] = value
                answered.setdefault("cache-control", "no-store")
            await send(message)

        refusal = await self._refusal(scope)
        await (refusal or self._app)(scope, receive, send_guarded)

    async def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        headers = Headers(scope=scope)
        if scope["path"] in OPEN_PATHS:
            return None
        if not self._access.is_ours(headers.get("host", "")):
            return PlainTextResponse(
                "this console does not know that host name; start it with --host-name NAME", 421
            )
        if _is_of_other_site(scope["path"], headers):
            return PlainTextResponse("the request comes from a page of another site", 403)
        peer = (scope.get("client") or ("", 0))[0]
        user = await self._access.user(headers, peer)
        if user is None:
            if self._access.passwords is not None:
                ask = {"www-authenticate": 'Basic realm="muster console", charset="UTF-8"'}
                return PlainTextResponse("a name and a password are needed", 401, ask)
            return PlainTextResponse("the reverse proxy has not sent the user's name", 401)
        scope[USER] = user
        if scope["method"] not in ("GET", "HEAD"):
            fault = self._access.write_fault(headers, user, scope["scheme"])
            if fault:
                return PlainTextResponse(fault, 403)
        return None
