from profiler.stages import rounded_up


def test_demand_is_rounded_up_by_less_than_a_hundredth() -> None:
    for demand in (0.01, 1.0, 60.0, 599.9, 12_345.6):
        assert demand <= rounded_up(demand) <= demand * 1.0101
        assert rounded_up(rounded_up(demand)) == rounded_up(demand)
    assert rounded_up(0.0) == 0.0
