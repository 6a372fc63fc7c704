"""`edgeswarm completion` and `edgeswarm-agent completion`: the script with which a shell completes the command."""

from __future__ import annotations

import click

SHELLS = ("bash", "zsh", "fish")

_HELP = """Print the script that lets your shell complete {program}: commands, options, files{more}.

Put it where your shell reads it, then open a new terminal.

\b
Examples:
  {program} completion bash > ~/.local/share/bash-completion/completions/{program}
  {program} completion zsh > ~/.zfunc/_{program}          with `fpath+=~/.zfunc` before `compinit` in ~/.zshrc
  {program} completion fish > ~/.config/fish/completions/{program}.fish

\b
Or for the terminal at hand:
  source <({program} completion bash)
"""


def completion_command(program: str, *, more: str = "") -> click.Command:
    """The command `completion` for the command line `program`. more: what else it completes, for its help."""

    @click.command("completion", short_help="Print the script for your shell's completion.")
    @click.argument("shell", type=click.Choice(SHELLS))
    @click.pass_context
    def completion(context: click.Context, /, shell: str) -> None:
        from click.shell_completion import get_completion_class

        made = get_completion_class(shell)
        assert made is not None, "click knows the shells that we name"
        variable = f"_{program}_COMPLETE".replace("-", "_").upper()
        click.echo(made(context.find_root().command, {}, program, variable).source())

    completion.help = _HELP.format(program=program, more=more)
    return completion
