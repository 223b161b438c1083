"""Floor 1: trees, class tables, records, random streams, registries, errors. Knows nothing of learning."""
