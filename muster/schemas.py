"""Schemas of other writers, which an operator names: ``FILE.avsc`` or ``ID=FILE.avsc``.

A writer's schema is known by its fingerprint; one with an id is known by that too, so that values
in Confluent's framing of it are read. What travels to Spark's workers is the text of the files;
every process parses it once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from muster.protocol.errors import ConfigError, DecodeError
from muster.protocol.framing import KNOWN, Schemas

ID_MAX = 2**31 - 1


class WriterSchema(NamedTuple):
    """One schema. `id` is its number in a schema registry, None without one."""

    id: int | None
    text: str


def read_schemas(key: str, given: Iterable[str]) -> tuple[WriterSchema, ...]:
    """Read the files an operator named.

    Args:
        key: the option or setting they stand in, for the error.
        given: each ``FILE`` or ``ID=FILE``.

    Raises:
        ConfigError: a file that cannot be read, or is no Avro schema of a record of ours.
    """
    found = tuple(_read(key, each) for each in given)
    schemas_of(found)
    return found


def _read(key: str, each: str) -> WriterSchema:
    number, separator, path = each.rpartition("=")
    if separator and not (number.isdecimal() and int(number) <= ID_MAX):
        raise ConfigError(key, each, "ID=FILE with the ID a number of the schema registry")
    try:
        schema = WriterSchema(int(number) if separator else None, Path(path).read_text("utf-8"))
        schemas_of((schema,))
    except OSError as error:
        raise ConfigError(key, each, f"a file that can be read ({error.strerror})") from None
    except DecodeError as error:
        raise ConfigError(key, each, f"the Avro schema of a record of muster; {error}") from None
    except Exception as error:  # fastavro and json have many for what is no schema
        raise ConfigError(key, each, f"an Avro schema as JSON; {error}") from None
    return schema


@lru_cache(maxsize=8)
def schemas_of(given: tuple[WriterSchema, ...]) -> Schemas:
    """What a reader knows with these schemas beside our own."""
    if not given:
        return KNOWN
    parsed = [(each.id, json.loads(each.text)) for each in given]
    by_id = {number: schema for number, schema in parsed if number is not None}
    return Schemas(tuple(schema for _, schema in parsed), by_id)
