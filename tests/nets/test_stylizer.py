"""Stylizers: shapes, our files and the published ones, and one line for any that is wrong."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn

from triplee import load_stylizer
from triplee.nets.stylizer import ENCODERS, Stylizer, VGGEncoder
from triplee.nets.stylizer_file import freeze, read_stylizer, stylizer_fingerprint, write_stylizer
from triplee.settings import InputError


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("size", [(32, 32), (33, 47)])
def test_what_is_encoded_is_decoded_to_the_same_size(name: str, size: tuple[int, int]) -> None:
    stylizer = freeze(Stylizer(name))
    images = torch.rand(2, 3, *size)
    features = stylizer.encode(images)
    assert features.shape[1] == stylizer.encoder.decoder_widths[0] and features.shape[2] < size[0]
    assert stylizer.decode(features, *size).shape == images.shape
    assert not any(p.requires_grad for p in stylizer.parameters())


def published_vgg() -> nn.Sequential:
    """The layers of vgg_normalised.pth up to relu5_1, as its users build them."""

    def block(*widths: int) -> list[nn.Module]:
        layers: list[nn.Module] = []
        for before, after in pairwise(widths):
            layers += [nn.ReflectionPad2d((1, 1, 1, 1)), nn.Conv2d(before, after, (3, 3)), nn.ReLU()]
        return layers

    def pool() -> nn.Module:
        return nn.MaxPool2d((2, 2), (2, 2), (0, 0), ceil_mode=True)

    return nn.Sequential(
        *(nn.Conv2d(3, 3, (1, 1)), *block(3, 64, 64), pool(), *block(64, 128, 128), pool()),
        *(*block(128, 256, 256, 256, 256), pool(), *block(256, 512, 512, 512, 512), pool(), *block(512, 512)),
    )


def published_decoder() -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after, doubles in (
        *((512, 256, True), (256, 256, False), (256, 256, False), (256, 256, False), (256, 128, True)),
        *((128, 128, False), (128, 64, True), (64, 64, False), (64, 3, False)),
    ):
        layers += [nn.ReflectionPad2d((1, 1, 1, 1)), nn.Conv2d(before, after, (3, 3)), nn.ReLU()]
        layers += [nn.Upsample(scale_factor=2, mode="nearest")] if doubles else []
    return nn.Sequential(*layers[:-1])


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, nn.Sequential, nn.Sequential]:
    torch.manual_seed(0)
    folder, vgg, decoder = tmp_path_factory.mktemp("published"), published_vgg(), published_decoder()
    torch.save(vgg.state_dict(), folder / "vgg_normalised.pth")
    torch.save(decoder.state_dict(), folder / "decoder.pth")
    return folder, vgg, decoder


def test_the_published_pair_loads_and_computes_the_same(
    published: tuple[Path, nn.Sequential, nn.Sequential],
) -> None:
    folder, vgg, decoder = published
    assert list(vgg.state_dict())[-2:] == ["42.weight", "42.bias"] and list(decoder.state_dict())[-1] == "28.bias"
    stylizer = load_stylizer(folder)
    images = torch.rand(2, 3, 40, 40)
    with torch.inference_mode():
        features = vgg[:31](images)
        assert torch.allclose(stylizer.encode(images), features, atol=1e-5)
        assert torch.allclose(stylizer.decode(features, 40, 40), decoder(features), atol=1e-5)
        ends = [vgg[:end](images).shape for end in (4, 11, 18, 31)]
    assert [stage.shape for stage in stylizer.encoder(images)] == ends


@pytest.mark.parametrize(
    "harm, words",
    [
        ("no decoder", ("has no decoder.pth",)),
        ("cut off", ("vgg_normalised.pth", "damaged")),
        ("other names", ("decoder.pth", "not laid out")),
        ("other shape", ("decoder.pth", "28.weight", "another shape")),
        ("missing layer", ("vgg_normalised.pth", "9.weight")),
        ("code", ("decoder.pth", "holds code")),
    ],
)
def test_a_wrong_published_file_is_one_line(
    published: tuple[Path, nn.Sequential, nn.Sequential], tmp_path: Path, harm: str, words: tuple[str, ...]
) -> None:
    _, vgg, decoder = published
    vgg_tensors, decoder_tensors = vgg.state_dict(), decoder.state_dict()
    if harm == "other names":
        decoder_tensors = {f"layers.{name}": tensor for name, tensor in decoder_tensors.items()}
    elif harm == "other shape":
        decoder_tensors["28.weight"] = torch.zeros(3, 32, 3, 3)
    elif harm == "missing layer":
        del vgg_tensors["9.weight"]
    torch.save(vgg_tensors, tmp_path / "vgg_normalised.pth")
    if harm == "code":
        torch.save(decoder, tmp_path / "decoder.pth")
    elif harm != "no decoder":
        torch.save(decoder_tensors, tmp_path / "decoder.pth")
    if harm == "cut off":
        whole = (tmp_path / "vgg_normalised.pth").read_bytes()
        (tmp_path / "vgg_normalised.pth").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError) as error:
        load_stylizer(tmp_path)
    assert all(word in str(error.value) for word in words) and "\n" not in str(error.value), error.value


def test_our_file_brings_back_weights_and_facts(tmp_path: Path) -> None:
    path, stylizer = tmp_path / "s.safetensors", Stylizer("resnet18")
    stylizer.encoder.stages[0][1].running_mean.fill_(0.25)  # type: ignore[index, union-attr]
    write_stylizer(path, stylizer, {"domains": ["a", "b"]})
    loaded, facts = read_stylizer(path)
    assert facts == {"encoder": "resnet18", "domains": ["a", "b"]}
    assert stylizer_fingerprint(loaded) == stylizer_fingerprint(stylizer)
    images = torch.rand(1, 3, 32, 32)
    assert torch.allclose(loaded.encode(images), stylizer.eval().encode(images), atol=1e-5)


def test_a_wrong_file_of_ours_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        load_stylizer(tmp_path / "none.safetensors")
    path = tmp_path / "s.safetensors"
    write_stylizer(path, Stylizer("small"), {})
    content = path.read_bytes()
    for broken in (content[:-5], content[:300] + b"?" + content[301:], b"no tensors"):
        path.write_bytes(broken)
        with pytest.raises(InputError, match="no stylizer, or a damaged one"):
            load_stylizer(path)


def test_vgg_knows_its_stages() -> None:
    assert [type(VGGEncoder().layers[end - 1]) for end in VGGEncoder.ends] == [nn.ReLU] * 4
