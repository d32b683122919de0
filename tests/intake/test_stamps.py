import pytest

from sparkd.intake import stamps


@pytest.mark.parametrize(
    "printed",
    [
        "1137 02:04:12",
        "11-31 02:04:12",
        "02-30 10:00:00",
        "13-01 10:00:00",
        "00-10 10:00:00",
        "11-00 10:00:00",
        "2026-11-30 24:04:12,082",
        "Nov 31 02:04:12",
        "Foo 12 02:04:12",
    ],
)
def test_a_date_that_does_not_exist_orders_nothing(printed: str) -> None:
    assert stamps.seconds(printed) is None


def test_a_leap_day_and_the_last_of_a_month_exist() -> None:
    day_s = stamps.DAY_S

    assert stamps.seconds("02-29 00:00:00") == 59 * day_s
    assert stamps.seconds("0229 00:00:00") == 59 * day_s
    assert stamps.seconds("2026-12-31T23:59:59.5Z") == 366 * day_s - 0.5
