from controller.core.state.shards import Entry, Shard, committed, shard_of


def test_a_name_selects_the_same_shard_in_every_release() -> None:
    """Another selection would hand over half of every fleet at an upgrade."""
    assert [shard_of(name, 4) for name in ("speech", "team-0", "team-2", "kube-system")] == [0, 2, 3, 2]


def test_names_are_spread_over_all_shards() -> None:
    counts = [0] * 4
    for index in range(1000):
        counts[shard_of(f"team-{index}", 4)] += 1
    assert min(counts) > 200


def test_namespaces_with_one_value_of_the_label_are_together() -> None:
    shards = [Shard(index=index, count=3, label="team") for index in range(3)]
    homes = [
        next(shard.index for shard in shards if shard.has(name, {"team": "red"})) for name in ("one", "two", "three")
    ]
    assert len(set(homes)) == 1
    plain = [Shard(index=index, count=3) for index in range(3)]
    for name in ("one", "two", "three"):
        own = next(shard.index for shard in plain if shard.has(name, {}))
        assert all(shards[own].has(name, labels) for labels in ({}, {"team": ""}))


def test_what_is_committed_is_the_most_that_a_shard_may_use() -> None:
    entries = [
        Entry(shard=0, of=3, used=2, agreed=5, allowed=4),
        Entry(shard=1, of=3, used=2, agreed=2, allowed=6),
        Entry(shard=2, of=3, used=3, agreed=1),
    ]
    assert [each.committed for each in entries] == [5, 6, 3]
    assert committed(entries) == 14
