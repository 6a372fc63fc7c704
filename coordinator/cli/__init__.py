"""The `edgeswarm` command. Nothing heavy is imported before a command needs it, so that `--help` comes at once."""


def main() -> None:
    """The entry point; leaves by SystemExit with one of the exit codes of `edgeswarm.errors.ExitCode`."""
    try:
        from .app import edgeswarm
    except KeyboardInterrupt:  # Ctrl-C before there is anybody who would report it
        import sys

        print("error: interrupted", file=sys.stderr)
        sys.exit(130)

    edgeswarm.main(prog_name="edgeswarm")
