import numpy as np

from pair.engine.query.postings import sum_by_row


def test_sums_of_few_and_of_many_rows_are_equal_to_the_last_bit() -> None:
    rng = np.random.default_rng(1)
    rows, values = rng.integers(0, 40, 300), rng.random(300, np.float32)
    few_rows, few = sum_by_row(rows, values, 100_000)
    many_rows, many = sum_by_row(rows, values, 40)
    assert few_rows.tolist() == many_rows.tolist() == sorted(set(rows.tolist()))
    assert few.tolist() == many.tolist()
    assert len(sum_by_row(rows[:0], values[:0], 40)[0]) == 0
