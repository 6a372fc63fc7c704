"""A job's files that a worker loads before it is told its part: a real daemon in this process, stand-in workers."""

from __future__ import annotations

import pytest

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.wire.v1 import agent_pb2

from .called_agent import Agent, StartAgent, Watch, archive_of, job, sha256
from .processes import exists
from .stand_in_worker import PORT

FIRST = archive_of(**{"train.py": "job = 1\n"})
SECOND = archive_of(**{"train.py": "job = 2\n"})  # the learning rate was changed, say


def trained(agent: Agent, *, data_mode: str) -> None:
    """A job that had this device in its plan, with train.py as its file, is over."""
    agent.reserve()
    agent.put(FIRST)
    agent.prepare(sha256(FIRST), job_file="train.py", data_mode=data_mode)
    agent.release()


def put_second(agent: Agent) -> None:
    agent.reserve("digits-1")
    agent.put(SECOND)


def loaded_ahead(agent: Agent) -> set[str]:
    """By the worker, until it prepares."""
    return {name for name in agent.prepare(sha256(SECOND)).seconds if name.startswith("ahead")}


@pytest.mark.parametrize(("data_mode", "told"), [("local", "ahead: train.py, data"), ("served", "ahead: train.py")])
def test_what_the_last_training_of_that_file_wanted_is_loaded_ahead(
    start_agent: StartAgent, data_mode: str, told: str
) -> None:
    agent = start_agent(ready_worker_seconds=60)
    trained(agent, data_mode=data_mode)
    put_second(agent)
    agent.load_ahead(sha256(SECOND), "train.py")
    assert loaded_ahead(agent) == {told}


def test_nothing_is_loaded_of_another_file_or_where_none_was_trained(start_agent: StartAgent) -> None:
    agent = start_agent(ready_worker_seconds=60)
    put_second(agent)
    agent.load_ahead(sha256(SECOND), "train.py")
    assert loaded_ahead(agent) == set()
    agent.release()
    trained(agent, data_mode="local")
    put_second(agent)
    agent.load_ahead(sha256(SECOND), "other.py")
    assert loaded_ahead(agent) == set()


def test_a_worker_that_has_loaded_a_job_measures_nothing(start_agent: StartAgent) -> None:
    """What it holds would be taken for the process's own."""
    agent = start_agent(ready_worker_seconds=60)
    trained(agent, data_mode="local")
    put_second(agent)
    watch = Watch(agent)
    loading = watch.next("heartbeat", lambda beat: beat.worker.tensor_port == PORT).worker.process_id
    agent.load_ahead(sha256(SECOND), "train.py")
    request = agent_pb2.ProfileRequest(job=job(), layers=[agent_pb2.ProfileLayer(signature="a")])
    assert [reply.WhichOneof("reply") for reply in agent.call("Profile", request)] == ["curve", "process"]
    assert not exists(loading)
    assert loaded_ahead(agent) == set()


def test_nor_does_one_that_measures_load_it_then(start_agent: StartAgent) -> None:
    agent = start_agent(ready_worker_seconds=60)
    trained(agent, data_mode="local")
    put_second(agent)
    list(agent.call("Profile", agent_pb2.ProfileRequest(job=job())))
    agent.load_ahead(sha256(SECOND), "train.py")
    assert loaded_ahead(agent) == set()


def test_a_load_that_kills_the_worker_is_not_tried_again(start_agent: StartAgent) -> None:
    """The job's next attempt may leave this device out."""
    agent = start_agent(ready_worker_seconds=60)
    trained(agent, data_mode="local")
    put_second(agent)
    agent.load_ahead(sha256(SECOND), "train.py")
    agent.release()
    agent.reserve()
    agent.load_ahead(sha256(SECOND), "train.py")
    assert loaded_ahead(agent) == set()


def test_files_that_are_not_there_and_jobs_that_hold_nothing_are_refused(start_agent: StartAgent) -> None:
    agent = start_agent(ready_worker_seconds=60)
    trained(agent, data_mode="local")
    agent.reserve()
    with pytest.raises(EdgeswarmError, match="doesn't have the bundle"):
        agent.load_ahead(sha256(SECOND), "train.py")
    agent.put(SECOND)
    with pytest.raises(EdgeswarmError) as caught:
        agent.load_ahead(sha256(SECOND), "train.py", name="digits-2")
    assert caught.value.code is ErrorCode.DEVICE_BUSY
