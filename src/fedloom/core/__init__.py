"""Floor 1: trees, class tables, records, random streams, registries and errors; nothing here knows of learning."""
