"""ESAug and ReplayCollate in somebody's own loop."""

import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from triplee import ESAug, ReplayCollate
from triplee.data.pool import Pool
from triplee.settings import InputError


@pytest.fixture
def images(digits: Pool) -> torch.Tensor:
    return digits.images_NCHW[::500].clone()


def test_same_kind_out(images: torch.Tensor) -> None:
    augment = ESAug("fourier", partners=images)
    assert augment(images).shape == images.shape and augment(images).dtype == torch.uint8
    assert augment(images[0]).shape == images[0].shape
    picture = augment(Image.new("RGB", (32, 32), "red"))
    assert isinstance(picture, Image.Image) and picture.size == (32, 32)
    assert augment(Image.new("L", (32, 32), 90)).mode == "L"


def test_follows_torchs_seed_and_leaves_its_input_alone(images: torch.Tensor) -> None:
    untouched = images.clone()
    torch.manual_seed(3)
    one = ESAug()(images)
    torch.manual_seed(3)
    two = ESAug()(images)
    assert torch.equal(one, two) and torch.equal(images, untouched)
    assert not torch.equal(one, ESAug()(images))


def test_partners_are_mixed_in(images: torch.Tensor) -> None:
    white = torch.full((2, 3, 32, 32), 255, dtype=torch.uint8)
    views = ESAug("fourier", partners=white, cross_image_probability=1.0)(images)
    brighter = views.float().mean((1, 2, 3)) - images.float().mean((1, 2, 3))
    assert (brighter > 0).float().mean() > 0.9


def test_one_image_alone_has_nobody_to_mix_with(images: torch.Tensor) -> None:
    with pytest.raises(InputError, match="partners"):
        ESAug("fourier")(images[0])
    assert ESAug("basic")(images[0]).shape == (3, 32, 32)


@pytest.mark.parametrize("wrong", [torch.zeros(3, 8, 8), torch.zeros(1, 8, 8, dtype=torch.uint8)])
def test_wrong_input_is_named(wrong: torch.Tensor) -> None:
    with pytest.raises(InputError, match="uint8"):
        ESAug("basic")(wrong)


def test_unknown_list_and_unfitting_partners(images: torch.Tensor) -> None:
    with pytest.raises(InputError, match="fourier"):
        ESAug("furier")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="cross_image_probability"):
        ESAug("basic", cross_image_probability=0.5)
    with pytest.raises(InputError, match="ops_per_view"):
        ESAug(ops_per_view=0)
    with pytest.raises(InputError, match="partners"):
        ESAug(partners=torch.zeros(2, 3, 8, 8, dtype=torch.uint8))(images)
    for wrong in (images / 255, images[0], images[:, :1], images[:0], images.numpy()):
        with pytest.raises(InputError, match=r"partners are a uint8 tensor \(P,3,H,W\) .*, not (Tensor|ndarray) "):
            ESAug("fourier", partners=wrong)


def test_replay_gives_r_views_of_each_sample_in_a_row(images: torch.Tensor) -> None:
    samples = [(image, label) for label, image in enumerate(images)]
    loader = DataLoader(samples, batch_size=4, collate_fn=ReplayCollate(3, ESAug("basic")))  # type: ignore[arg-type]
    views, labels = next(iter(loader))
    assert views.shape == (12, 3, 32, 32) and labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    views, labels = ReplayCollate(2, lambda image: image)(samples[:3])
    assert torch.equal(views, images[[0, 0, 1, 1, 2, 2]])


def test_replay_takes_pictures_and_any_transform() -> None:
    samples = [(Image.new("RGB", (16, 16), colour), k) for k, colour in enumerate(("red", "blue"))]
    views, _ = ReplayCollate(4, ESAug("fourier"))(samples)
    assert views.shape == (8, 3, 16, 16) and views.dtype == torch.uint8
    floats, _ = ReplayCollate(2, lambda picture: torch.tensor(picture.getpixel((0, 0))).float())(samples)
    assert floats.tolist() == [[255, 0, 0]] * 2 + [[0, 0, 255]] * 2
    with pytest.raises(InputError):
        ReplayCollate(0, ESAug())
