"""`holdfast completion`"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from holdfast.cli.context import CommandContext, command


@command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion_command(ctx: CommandContext, shell: str) -> None:
    """Print the script that completes commands, options and runs in your shell.

    \b
    bash:  eval "$(holdfast completion bash)"   in ~/.bashrc
    zsh:   eval "$(holdfast completion zsh)"    in ~/.zshrc
    fish:  holdfast completion fish > ~/.config/fish/completions/holdfast.fish
    """
    from holdfast.cli.app import program

    found = get_completion_class(shell)
    assert found is not None
    script = found(program, {}, "holdfast", "_HOLDFAST_COMPLETE").source()
    if ctx.out.json:
        ctx.out.document({"shell": shell, "script": script})
    else:
        print(script)
