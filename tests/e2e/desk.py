"""Where somebody sits who types `edgeswarm` commands for a cluster, and what a command that fails must leave behind."""

from __future__ import annotations

from pathlib import Path

from edgeswarm.errors import ExitCode
from edgeswarm_coordinator.demo.cluster import ThrowawayCluster

from .commands import EDGESWARM, RunningCommand, living
from .faulty_job import ENDLESS, FaultyJob, Groups, write_plan

ALONE = ({"a": 4},)
TWO_STAGES = ({"a": 4}, {"b": 4})
WITH_REPLICAS = ({"a": 4}, {"b": 1, "c": 3})
ENDLESS_JOB = FaultyJob(epochs=ENDLESS)
FIRST_ROUND = "round 1/"


class Desk:
    """Where somebody sits who types `edgeswarm` commands for the cluster."""

    def __init__(self, cluster: ThrowawayCluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.output = folder / "result"
        self.commands: list[RunningCommand] = []

    def start(self, *arguments: str | Path, **environment: str) -> RunningCommand:
        """Any command of `edgeswarm` that looks for devices."""
        peers = [part for address in self.cluster.addresses for part in ("--peer", address)]
        command = RunningCommand(
            [EDGESWARM, *arguments, *peers],
            environment={**self.cluster.environment, **environment},
            temporary=self.folder / f"temporary-{len(self.commands)}",
            warm=True,
        )
        self.commands.append(command)
        return command

    def train(
        self,
        job: FaultyJob,
        *arguments: str | Path,
        groups: Groups | None = TWO_STAGES,
        mdns: bool = False,
        **environment: str,
    ) -> RunningCommand:
        """`edgeswarm train`. groups: of a plan by hand; None lets the planner choose."""
        path = job.write(self.folder / "job")
        plan = ("--plan", write_plan(self.folder, groups)) if groups is not None else ()
        search = () if mdns else ("--no-mdns",)
        return self.start("train", path, "--output", self.output, *search, *plan, *arguments, **environment)

    def in_mid_round(self, groups: Groups = TWO_STAGES) -> RunningCommand:
        """An endless training whose first rounds are done."""
        command = self.train(ENDLESS_JOB, groups=groups)
        command.wait_for(FIRST_ROUND)
        return command

    def assert_nothing_left(self, command: RunningCommand) -> None:
        """No result, not even a half one, and no temporary files (torch makes a folder of its own there)."""
        assert [path.name for path in self.folder.iterdir() if "result" in path.name] == []
        assert list(command.temporary.glob("edgeswarm*")) == []


def failed(desk: Desk, command: RunningCommand, *, code: ExitCode = ExitCode.ERROR) -> str:
    """The message of a command that fails as it should and leaves nothing behind."""
    children = command.children
    ended = command.end()
    assert ended.code == code, ended.said
    message = ended.message
    assert code is ExitCode.INTERRUPTED or "\nremedy: " in message, ended.said
    desk.assert_nothing_left(command)
    assert living(children) == []
    return message
