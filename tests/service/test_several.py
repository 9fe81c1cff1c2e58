"""Several servers of one pipeline: each makes its share, and survivors take over."""

import pytest
from tests.cases import for_each
from tests.service.served import HERE, locally, pipeline, plain, seen, server_process, stream

import penstock as ps
from penstock.service import line
from penstock.testing import check_resume


def serve_all(count, served, **options):
    return [ps.serve(served(), HERE, **{"mode": "shard", **options}) for _ in range(count)]


@for_each("served", [plain, stream])
def test_servers_share_the_work_and_the_stream_is_merged_in_order(served):
    whole = locally(served(), 2)
    servers = serve_all(3, served)
    addresses = [one.address for one in servers]
    with ps.connect(addresses).loader() as loader:
        assert [seen(batches) for _, batches in loader.epochs(2)] == whole
    counts = [one.stats()["server.batches"] for one in servers]
    assert sum(counts) == sum(map(len, whole))
    assert max(counts) - min(counts) <= 2
    for one in servers:
        one.close()


@for_each("world", [2, 3])
def test_ranks_of_several_servers_share_one_stream(world):
    whole = locally(plain())[0]
    servers = serve_all(2, plain)
    addresses = [one.address for one in servers]
    found = [seen(ps.connect(addresses, rank=rank, world=world)) for rank in range(world)]
    assert found == [whole[rank::world] for rank in range(world)]
    check_resume(ps.connect(addresses, rank=1, world=world), every=5)
    for one in servers:
        one.close()


def test_survivors_take_over_the_share_of_a_killed_server(monkeypatch):
    monkeypatch.setattr(line, "TAKE_OVER_S", 0.3)
    whole = locally(stream())[0]
    with (
        server_process(mode="shard", credit=2, pipeline="stream") as first,
        ps.serve(stream(), HERE, mode="shard", credit=2) as second,
    ):
        loader = ps.connect([first.address, second.address]).loader()
        batches = iter(loader)
        found = seen([next(batches) for _ in range(4)])
        first.kill()
        found += seen(batches)
        loader.close()
    assert found == whole


def test_servers_of_different_pipelines_are_refused():
    refused = pytest.raises(ps.ServiceError, match="do not serve the same")
    with ps.serve(plain(), HERE, mode="shard") as one, ps.serve(plain(100), HERE, mode="shard") as other, refused:
        list(ps.connect([one.address, other.address]))


def test_a_sample_that_is_left_out_is_an_error_that_says_so(caplog):
    servers = serve_all(2, pipeline)
    with pytest.raises(ps.ServiceError, match="the served pipeline raised"):
        list(ps.connect([one.address for one in servers]))
    for one in servers:
        one.close()
