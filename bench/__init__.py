"""Holdfast measured beside the raw limit of the disk and beside its peers. Run `python -m bench --help`."""
