"""Take time and chance out of Java's trust store: ``python cacerts.py FILE SECONDS``.

Debian's package writes into it when each certificate was added, in the order of a hash table. Both
make every build another image. Here the entries are sorted, all of one time; the rest stays.

The format is what `keytool` calls JKS: magic, version, number of entries, then of each its kind
(2 = a trusted certificate), name, time and certificate, and a digest of it all and the password.
"""

from __future__ import annotations

import hashlib
import struct
import sys
from pathlib import Path

PASSWORD = "changeit"  # noqa: S105  a public one: the store holds no secret
HEAD = struct.Struct(">III")
MAGIC, VERSION, TRUSTED = 0xFEEDFEED, 2, 2


def settled(store: bytes, at_s: int) -> bytes:
    """The store with its entries in order, each added at `at_s` (Unix time).

    Raises:
        ValueError: it is not a JKS store of trusted certificates.
    """
    magic, version, count = HEAD.unpack_from(store)
    if (magic, version) != (MAGIC, VERSION):
        raise ValueError("not a JKS store of version 2")
    entries: list[bytes] = []
    at = HEAD.size
    for _ in range(count):
        kind, length = struct.unpack_from(">IH", store, at)
        if kind != TRUSTED:
            raise ValueError("it holds a key")
        name = store[at : at + 6 + length]
        at += len(name) + 8
        (type_length,) = struct.unpack_from(">H", store, at)
        (size,) = struct.unpack_from(">I", store, at + 2 + type_length)
        end = at + 2 + type_length + 4 + size
        entries.append(name + struct.pack(">q", at_s * 1000) + store[at:end])
        at = end
    body = HEAD.pack(magic, version, count) + b"".join(sorted(entries))
    salted = PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + body
    return body + hashlib.sha1(salted).digest()  # noqa: S324  the format's


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_bytes(settled(path.read_bytes(), int(sys.argv[2])))
