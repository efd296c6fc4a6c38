"""Avro schemas of other writers, given by the operator as ``FILE.avsc`` or ``ID=FILE.avsc``.

A reader finds a writer's schema by its fingerprint, or by its ID, so that it also reads values in
Confluent's framing. Spark's workers get the text of the files; each process parses it once.
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
    """One schema. `id` is its number in a schema registry; None = it has none."""

    id: int | None
    text: str


def read_schemas(key: str, given: Iterable[str]) -> tuple[WriterSchema, ...]:
    """Read schema files, each ``FILE`` or ``ID=FILE``; errors name the option or setting, `key`.

    Raises:
        ConfigError: a file that cannot be read, or is no Avro schema of one of muster's records.
    """
    schemas = tuple(_read(key, name) for name in given)
    schemas_of(schemas)
    return schemas


def _read(key: str, name: str) -> WriterSchema:
    number, separator, path = name.rpartition("=")
    if separator and not (number.isdecimal() and int(number) <= ID_MAX):
        raise ConfigError(key, name, "ID=FILE with the ID a number of the schema registry")
    try:
        schema = WriterSchema(int(number) if separator else None, Path(path).read_text("utf-8"))
        schemas_of((schema,))
    except OSError as error:
        raise ConfigError(key, name, f"a file that can be read ({error.strerror})") from None
    except DecodeError as error:
        raise ConfigError(key, name, f"the Avro schema of a record of muster; {error}") from None
    except KeyError as error:
        raise ConfigError(key, name, f"an Avro schema as JSON, with the key {error}") from None
    except Exception as error:  # fastavro and json raise many kinds for a text that is no schema
        raise ConfigError(key, name, f"an Avro schema as JSON; {error}") from None
    return schema


@lru_cache(maxsize=8)
def schemas_of(given: tuple[WriterSchema, ...]) -> Schemas:
    """The schemas that a reader knows: muster's own and these."""
    if not given:
        return KNOWN
    parsed = [(schema.id, json.loads(schema.text)) for schema in given]
    by_id = {number: schema for number, schema in parsed if number is not None}
    return Schemas(tuple(schema for _, schema in parsed), by_id)
