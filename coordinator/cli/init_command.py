"""`edgeswarm init`: a new cluster."""

from __future__ import annotations

import click

from edgeswarm.cli_errors import json_option

from .console import hint, print_json


@click.command(short_help="Make a cluster.")
@json_option()
def init(as_json: bool) -> None:
    """Make a cluster: a certificate authority and this machine's own identity.

    Done once, on the machine that you train from. The authority's key stays in your state folder; whoever has it can
    add devices to the cluster, so treat it like a password.

    \b
    Example:
      edgeswarm init
      edgeswarm token create       then, for each device
    """
    from edgeswarm.config import Folders
    from edgeswarm.security.authority import create_cluster

    folders = Folders.find()
    authority, identity = create_cluster(authority_folder=folders.authority_dir, operator_folder=folders.operator_dir)
    if as_json:
        print_json(
            {"cluster": authority.fingerprint, "operator": identity.node_id, "authority": str(folders.authority_dir)}
        )
        return
    click.echo(f"cluster   {authority.fingerprint}")
    click.echo(f"operator  {identity.node_id}")
    hint(f"The authority's key is in {folders.authority_dir}. Keep it to yourself, and keep a copy.")
    hint("Next: `edgeswarm token create`, which prints what to type on each device.")
