"""Show every group in the browser: a live map of which member holds what, with reasons and history.

The console reads muster's topics `groups` and `rejected`, and the job's metrics port if --metrics
names it; with --shadow also the groups that Kafka coordinates. It is a process of its own, and any
number of consoles may run. It changes nothing, except with --allow, and then it asks before it
writes. Without --host, only this machine can reach it.
"""

from __future__ import annotations

import argparse
import ipaddress
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version

from muster import logs
from muster.cli.options import add_repeatable, kafka_settings
from muster.console.app import Options
from muster.console.drains_and_settings import ALLOWABLE, Writes
from muster.console.reader import Reader
from muster.console.request_guard import LOCAL_HOSTS, Access, Passwords, networks
from muster.console.server import Console, ListenAddress
from muster.console.store import Store
from muster.doctor.probes import base_of
from muster.errors import BadInput
from muster.kafka.client_settings import ClientSettings
from muster.kafka.cluster import admin, failures_named
from muster.kafka.command_options import add_prefixes, prefixes_of
from muster.signing.followed_key_file import add_signing_keys, key_file_of

PORT = 8090


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "--port", type=int, default=PORT, metavar="N", help="0 = a free one (default: %(default)s)"
    )
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="address to listen on; 0.0.0.0 = all (default: %(default)s)",
    )
    add_repeatable(
        parser,
        "--host-name",
        "NAME",
        "a host name of the console in browsers; may be repeated; other names are refused",
    )
    parser.add_argument(
        "--metrics", metavar="URL", help="the job's metrics port, for the health page"
    )
    parser.add_argument(
        "--allow",
        metavar="WHAT[,…]",
        help=f"what pages may write: {', '.join(ALLOWABLE)} (default: nothing)",
    )
    parser.add_argument(
        "--shadow",
        action="store_true",
        help="also show the groups that Kafka coordinates; the console only reads them",
    )
    logs.add_log_format(parser)
    access = parser.add_argument_group("who may use it")
    access.add_argument(
        "--auth-file", metavar="FILE", help="names and passwords, as htpasswd -B writes them"
    )
    access.add_argument(
        "--auth-proxy-header",
        metavar="HEADER",
        help="the header in which a reverse proxy names the user, e.g. X-Forwarded-User",
    )
    add_repeatable(
        access,
        "--auth-proxy-from",
        "ADDRESS",
        "address or network of that proxy; may be repeated (default: this machine)",
    )
    access.add_argument("--tls-cert", metavar="FILE", help="certificate chain in PEM: serve HTTPS")
    access.add_argument("--tls-key", metavar="FILE", help="its private key in PEM")
    add_signing_keys(add_prefixes(parser))


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or Ctrl-C."""
    logs.set_up(args.log_format)
    console = console_of(args)
    print(f"muster console: {console.url}", flush=True)
    console.run()
    return 0


def console_of(args: argparse.Namespace) -> Console:
    """The console that the arguments ask for.

    Raises:
        BadInput: an option cannot be used, or the port is taken.
    """
    allow = frozenset(filter(None, (args.allow or "").split(",")))
    if not allow <= set(ALLOWABLE):
        raise BadInput(f"--allow {args.allow}: expected some of {', '.join(ALLOWABLE)}")
    access = access_of(args)
    is_local = _is_local(args.host)
    knows_users = access.passwords is not None or bool(access.proxy_header)
    if allow and not is_local and not knows_users:
        raise BadInput(
            "--allow together with --host lets everyone in the network write: give --auth-file "
            "or --auth-proxy-header"
        )
    if (args.tls_cert is None) != (args.tls_key is None):
        raise BadInput("give both --tls-cert FILE and --tls-key FILE, or neither")
    if args.metrics:
        base_of(args.metrics)
    clients = kafka_settings(args)
    with failures_named(clients):
        admin(clients)  # refuses wrong settings; no answer is waited for
    options = Options(
        clients=clients,
        metrics=args.metrics or "",
        version=version("muster-kafka"),
        writes=Writes(allow, key_file_of(args.signing_keys)),
    )
    listen_on = ListenAddress(args.host, args.port, args.tls_cert, args.tls_key)
    store = Store(prefixes_of(args))
    return Console(store, readers(clients, store, shadow=args.shadow), options, access, listen_on)


@contextmanager
def readers(clients: ClientSettings, store: Store, *, shadow: bool) -> Iterator[None]:
    """Run the readers that fill the store: of muster's topics and, if asked, of Kafka's groups."""
    with ExitStack() as stack:
        stack.enter_context(Reader(clients, store))
        if shadow:
            from muster.console.kafka_groups import Shadows  # needs the packages of `muster shadow`

            stack.enter_context(Shadows(clients, store))
        yield


def access_of(args: argparse.Namespace) -> Access:
    """Who may use the console.

    Raises:
        BadInput: the password file cannot be read, or a network is malformed.
    """
    # With --host and without --host-name any name is accepted: the network was admitted on purpose.
    names = {name.lower() for name in args.host_name}
    return Access(
        hosts=frozenset(names.union(LOCAL_HOSTS) if _is_local(args.host) else names),
        passwords=None if args.auth_file is None else Passwords(args.auth_file),
        proxy_header=args.auth_proxy_header or "",
        proxies=networks(args.auth_proxy_from or ("127.0.0.1", "::1")),
    )


def _is_local(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
