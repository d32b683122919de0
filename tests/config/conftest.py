import pytest

from config.files import Place


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)
