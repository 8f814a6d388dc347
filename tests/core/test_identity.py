"""Results are kept for the very thing they were computed for, and for no equal one."""

from kintsugi.core.identity import kept_by_identity


def counting(capacity):
    asked = []

    @kept_by_identity(capacity)
    def length(thing: tuple[int, ...]) -> int:
        asked.append(thing)
        return len(thing)

    return length, asked


def test_the_same_thing_is_computed_once_and_an_equal_one_anew():
    length, asked = counting(8)
    one, other = (tuple(range(2)) for _ in range(2))
    assert [length(one), length(one), length(other), length(one)] == [2, 2, 2, 2]
    assert [item is one for item in asked] == [True, False]


def test_the_oldest_is_forgotten_and_computed_again():
    length, asked = counting(2)
    things = [tuple(range(n)) for n in (3, 4, 5)]
    assert [length(thing) for thing in (*things, things[2], things[0])] == [3, 4, 5, 5, 3]
    assert len(asked) == 4


def test_a_thing_that_takes_the_place_of_a_forgotten_one_in_memory_has_a_result_of_its_own():
    length, _ = counting(1)
    assert all(length(tuple([0] * n)) == n for n in range(1, 200))
