"""The grid of contents and styles: each cell is what the op makes of its row in the style of its column."""

import numpy as np
import pytest
import torch

from triplee.augment.style import StyleTable
from triplee.data.pool import Pool
from triplee.nets.stylizer import Stylizer
from triplee.nets.stylizer_file import freeze
from triplee.results.style_grid import choose_images, draw_style_grid


@pytest.mark.parametrize("strength", [0.0, 1.0])
def test_every_cell_is_its_row_in_the_style_of_its_column(small: Pool, strength: float) -> None:
    torch.manual_seed(0)
    stylizer = freeze(Stylizer("small"))
    contents, styles = choose_images(small, ["red"], 0), choose_images(small, ["blue", "green"], 1)
    figure = draw_style_grid(small, stylizer, contents, styles, strength)
    table = StyleTable(stylizer, small.images_NCHW[:], styles)
    shown = np.array(figure.axes).reshape(len(contents) + 1, len(styles) + 1)
    for column, style in enumerate(styles):
        head = shown[0, column + 1]
        assert np.array_equal(head.images[0].get_array(), small.images_NCHW[int(style)].movedim(0, 2))
        assert head.get_title() == small.domains[small.domains_N[style]]
        for row, content in enumerate(contents):
            view = small.images_NCHW[int(content)][None].clone()
            table.restyle_views(view, np.array([0]), np.array([style]), np.array([strength]))
            off = shown[row + 1, column + 1].images[0].get_array().astype(int) - view[0].movedim(0, 2).numpy()
            assert np.abs(off).max() <= 1, (row, column)
