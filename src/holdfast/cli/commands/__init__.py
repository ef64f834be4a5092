"""One module a command, or a few that belong together. Each parses, calls the engine, prints."""
