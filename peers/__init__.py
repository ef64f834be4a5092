"""The frameworks' own test suites, with Holdfast's classes in place of theirs. Run `python -m peers --help`."""
