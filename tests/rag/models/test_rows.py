from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag.errors import ModelFailed
from rag.models.rows import require_finite, sigmoid, unit_rows

logits = st.floats(-(2.0**100), 2.0**100, width=32)


@given(first=logits, second=logits)
def test_sigmoid_keeps_the_order_and_stays_in_its_range(first, second):
    values = sigmoid(np.array([first, second], np.float32))
    assert values.dtype == np.float32
    assert ((values >= 0) & (values <= 1)).all()
    assert first > second or values[0] <= values[1]


def test_sigmoid_tells_very_low_logits_apart():
    assert sigmoid(np.array([-20.0], np.float32)) < sigmoid(np.array([-18.0], np.float32))
    assert sigmoid(np.array([0.0], np.float32)) == 0.5


def test_a_vector_without_a_direction_is_not_finite():
    good, bad = unit_rows(np.array([[3, 4], [0, 0]], np.float32))
    require_finite((good,))
    assert good.tolist() == pytest.approx([0.6, 0.8])
    with pytest.raises(ModelFailed):
        require_finite((bad,))
