"""What coordinator and members must agree on: ids, events, records, bytes."""
