"""The operations, by subject. A handler parses, calls the engine, and answers with a record."""
