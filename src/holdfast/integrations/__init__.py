"""Integrations with other frameworks: one module per framework, each on the public API of the engine.

A module here imports its framework at the top; nothing else in Holdfast imports it. A framework that is not
installed costs nothing, and the error on importing its module names the extra to install.
"""


def missing_extra(module: str, framework: str, package: str | None) -> ModuleNotFoundError:
    """Return the error of an integration whose framework is not installed. Extras are named like modules."""
    extra = module.removeprefix(f"{__name__}.").replace("_", "-")
    return ModuleNotFoundError(f"{module} needs {framework}: pip install 'holdfast[{extra}]'", name=package)
