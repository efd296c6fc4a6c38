"""The protocol between members and coordinator: ids, events, records, and their bytes."""
