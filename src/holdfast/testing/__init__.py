"""What others need to test code that stands on Holdfast, or under it.

`conformance` holds the contracts of `holdfast.store.base` as tests: whoever writes a store runs them on it.
Needs pytest.
"""
