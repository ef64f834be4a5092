"""One module per subject, with its commands. Each parses, calls the engine and prints."""
