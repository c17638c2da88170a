"""Statements of independent parts take turns: each waits for what it uses, and keeps its regions."""

from __future__ import annotations

from codegen.turns import by_turns


def turns(*parts: str) -> list[str]:
    return by_turns([part.strip("\n").split("\n") for part in parts], "")


def test_one_of_each_part_in_turn() -> None:
    assert turns("%1 = f %a0\n%2 = g %1", "%3 = f %a1\n%4 = g %3") == [
        "%1 = f %a0",
        "%3 = f %a1",
        "%2 = g %1",
        "%4 = g %3",
    ]


def test_the_longer_part_ends_alone() -> None:
    assert turns("%1 = f", "%2 = f\n%3 = g\nstore %3") == ["%1 = f", "%2 = f", "%3 = g", "store %3"]


def test_what_uses_a_value_of_another_part_waits_for_it() -> None:
    first, second = "%1 = f\n%2 = g %1", "%3 = h %2\n%4 = g %3"
    assert turns(first, second) == ["%1 = f", "%2 = g %1", "%3 = h %2", "%4 = g %3"]
    inside = "scf.if %c {\n  store %2\n}"
    assert turns(first, inside) == ["%1 = f", "%2 = g %1", *inside.split("\n")]


def test_regions_stay_whole() -> None:
    region = "%1 = scf.if %c -> (f32) {\n  %2 = f\n} else {\n  %3 = g\n}\n%4 = h %1"
    assert turns(region, "%5 = f\n%6 = g") == [*region.split("\n")[:5], "%5 = f", "%4 = h %1", "%6 = g"]
