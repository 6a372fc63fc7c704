"""The `edgeswarm` command. Nothing heavy is imported before a command needs it, so that `--help` comes at once."""


def main() -> None:
    """The entry point; leaves by SystemExit with one of the exit codes of `edgeswarm.errors.ExitCode`."""
    from .app import edgeswarm

    edgeswarm.main(prog_name="edgeswarm")
