"""Every overload has exactly one route, and the denominator is the one that the coverage report promises."""

from collections import Counter

from ops_core import routes


def test_the_headline_denominator_is_547_groups_of_1020_overloads():
    groups = routes.kernel_groups()
    assert len(groups) == 547
    assert sum(len(g.faces) for g in groups) == 1020


def test_every_overload_has_one_class_and_one_route():
    for op in routes.overloads():
        assert routes.class_of(op) in routes.CLASSES
        assert routes.route_of(op) in routes.ROUTES


def test_at_most_five_percent_of_the_groups_go_to_the_host():
    hosted = [g.name for g in routes.kernel_groups() if all(routes.route_of(f) == "host" for f in g.faces)]
    assert len(hosted) <= 27, hosted


def test_what_is_outside_is_no_dense_kernel():
    counts = Counter(routes.route_of(op) for op in routes.overloads() if routes.class_of(op) == "kernel")
    assert counts["outside"] == 0
