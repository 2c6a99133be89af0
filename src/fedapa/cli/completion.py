"""fedapa completion SHELL"""

from __future__ import annotations

import click

from fedapa.cli import group

SHELLS = ("bash", "zsh", "fish")


@click.command(short_help="Print the completion of a shell")
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> None:
    r"""Print what SHELL needs to complete commands and options of fedapa.

    \b
    bash: fedapa completion bash > ~/.local/share/bash-completion/completions/fedapa
    zsh:  fedapa completion zsh > ~/.zfunc/_fedapa (with fpath+=~/.zfunc before compinit)
    fish: fedapa completion fish > ~/.config/fish/completions/fedapa.fish
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(group, {}, "fedapa", "_FEDAPA_COMPLETE").source())
