"""`holdfast backup`, and options of `export` and `import`"""

from __future__ import annotations

from filled_store import SampleStore

import holdfast


def test_backup_to_standard_output_is_refused(own: SampleStore) -> None:
    before = sorted(own.folder.iterdir())
    assert "write ./-" in own.refused("backup", "-", code=2)
    assert sorted(own.folder.iterdir()) == before
    own.pipe("backup", "./-")
    assert (own.folder / "-").exists()


def test_bundle_to_standard_output_is_refused_and_a_version_is_printed(own: SampleStore) -> None:
    assert "a bundle is written to a file" in own.refused("export", "--bundle", "hand", "-o", "-", code=2)
    assert own.pipe("export", "hand@1", "-o", "-") == own.pipe("export", "hand@1")
    assert not (own.folder / "-").exists()


def test_bundle_with_secrets_is_imported_only_if_that_is_wanted(own: SampleStore) -> None:
    with holdfast.open(own.store) as hf:
        hf.history("secret").commit({"password": "hush-hush"})
    file, new = str(own.folder / "secret.holdfast"), ("--store", str(own.folder / "new.db"))
    own.pipe("export", "--bundle", "secret", "-o", file)
    own.pipe("init", *new)
    own.pipe("config", "redact", "add", "*password*", *new)
    said = own.refused("import", file, *new, code=6)
    assert "under password" in said
    assert "--keep-secrets" in said
    assert own.pipe("import", "--keep-secrets", file, *new) == "secret\n"
