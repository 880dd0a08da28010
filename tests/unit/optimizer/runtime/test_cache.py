from optimizer.runtime.cache import BoundedCache


def test_the_least_recently_used_value_goes_first() -> None:
    cache: BoundedCache[str] = BoundedCache(2)
    cache.put("a", "A")
    cache.put("b", "B")
    assert cache.get("a") == "A"
    assert cache.put("c", "C") == "C"
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == ("A", None, "C")


def test_sizes_add_up_to_at_most_the_bound() -> None:
    cache: BoundedCache[str] = BoundedCache(5, size=len)
    cache.put("a", "12")
    cache.put("b", "123")
    assert cache.put("too large", "123456") == "123456"
    assert (cache.get("a"), cache.get("b"), cache.get("too large")) == ("12", "123", None)
    cache.put("a", "1")  # replaced, so that its size counts once
    cache.put("c", "1")
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == ("1", "123", "1")
    cache.put("d", "12345")
    assert (cache.get("a"), cache.get("d")) == (None, "12345")


def test_nothing_is_kept_without_room_or_after_clearing() -> None:
    empty: BoundedCache[int] = BoundedCache(0)
    assert empty.put("a", 1) == 1
    assert empty.get("a") is None
    cache: BoundedCache[int] = BoundedCache(1)
    cache.put("a", 1)
    cache.clear()
    assert cache.get("a") is None
    cache.put("b", 2)
    assert cache.get("b") == 2
