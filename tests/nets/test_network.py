"""Networks built from a recipe: recipe keys, members, frozen batch norm, training."""

import copy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.optim.swa_utils import update_bn

from triplee.nets.network import Network, build_network
from triplee.settings import InputError, Recipe, make_recipe


def resnet_recipe(**values: object) -> Recipe:
    return make_recipe({"backbone": "resnet18", "image_size": 32, **values})


def save_weights(path: Path, backbone: str) -> Path:
    """A file of such a backbone, with statistics of its own."""
    torch.manual_seed(5)
    network = Network(resnet_recipe(backbone=backbone), 3)
    for name, tensor in network.backbone.state_dict().items():
        if name.endswith("running_mean"):
            tensor.normal_(std=0.1)
    torch.save(network.backbone.state_dict(), path)
    return path


@pytest.fixture(scope="module")
def weight_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_weights(tmp_path_factory.mktemp("weights") / "resnet18.pth", "resnet18")


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"backbone": "resnet81"}, "recipe key 'backbone': unknown backbone 'resnet81': did you mean 'resnet18'?"),
        ({"backbone": "timm:"}, "recipe key 'backbone': unknown backbone 'timm:': did you mean 'timm:NAME'?"),
        (
            {"weights": "imagenet1k"},
            "recipe key 'weights': 'imagenet1k' is neither none, imagenet nor a file ending in .pth .pt .safetensors",
        ),
        ({"weights": None}, "recipe key 'weights': should be a valid string"),
        ({"weights": "imagenet"}, "digit-cnn has no imagenet weights: set weights=none, or backbone=resnet18"),
        ({"batch_norm": "thawed"}, "recipe key 'batch_norm': should be 'trained' or 'frozen', not 'thawed'"),
        (
            {"backbone": "resnet18", "batch_norm": "frozen"},
            "batch_norm=frozen keeps what pretrained weights bring: set weights too, or leave it trained",
        ),
    ],
)
def test_bad_recipe_values_are_one_line(values: dict[str, object], line: str) -> None:
    with pytest.raises(InputError) as caught:
        make_recipe(values)
    assert str(caught.value) == line


BAD_SIZES = [("digit-cnn", 15), ("digit-cnn", 129), ("resnet18", 31), ("mobilenet-v2", 31)]


@pytest.mark.parametrize(("backbone", "size"), BAD_SIZES)
def test_a_size_that_does_not_fit_is_one_line(backbone: str, size: int) -> None:
    limits = "16 to 128" if backbone == "digit-cnn" else "32 to 1024"
    with pytest.raises(InputError, match=f"^image_size {size} does not fit {backbone}: {limits}$"):
        build_network(make_recipe({"backbone": backbone, "image_size": size}), 3, 0, 0)


def test_without_weights_every_member_starts_from_its_own_draws() -> None:
    one, again, other = (build_network(resnet_recipe(), 3, 0, k).state_dict() for k in (0, 0, 1))
    assert all(torch.equal(one[name], again[name]) for name in one)
    for name in ("backbone.conv1.weight", "classifier.weight", "head.0.weight"):
        assert not torch.equal(one[name], other[name]), name


def test_members_share_pretrained_weights_and_differ_in_heads(weight_file: Path) -> None:
    stored = torch.load(weight_file, weights_only=True)
    one, other = (build_network(resnet_recipe(weights=str(weight_file)), 3, 0, k) for k in range(2))
    for member in (one, other):
        assert all(torch.equal(tensor, stored[name]) for name, tensor in member.backbone.state_dict().items())
    for name in ("classifier.weight", "head.0.weight", "head.3.weight"):
        assert not torch.equal(one.state_dict()[name], other.state_dict()[name]), name
    with torch.no_grad():  # shared values, not shared memory
        one.backbone.conv1.weight.zero_()
    assert torch.equal(other.backbone.conv1.weight, stored["conv1.weight"])
    assert torch.equal(
        build_network(resnet_recipe(weights=str(weight_file)), 3, 0, 2).backbone.conv1.weight, stored["conv1.weight"]
    )


def test_a_run_is_read_back_without_its_weight_file() -> None:
    network = Network(resnet_recipe(weights="no/such/file.pth", batch_norm="frozen"), 3)
    assert network.eval()(torch.zeros(1, 3, 32, 32, dtype=torch.uint8)).shape == (1, 3)


def test_building_leaves_the_global_generator_alone(weight_file: Path) -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    build_network(resnet_recipe(weights=str(weight_file)), 3, 0, 0)
    assert torch.equal(torch.rand(4), expected)


def views(num_views: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    """Three classes told apart by which third of the image is bright."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 80, (num_views, 3, 32, 32), generator=generator, dtype=torch.uint8)
    labels = torch.arange(num_views) % 3
    for image, label in zip(images, labels.tolist(), strict=True):
        image[:, 10 * label : 10 * label + 10] += 150
    return images, labels


def train_steps(network: Network, num_steps: int, precision: str = "float32", num_views: int = 12) -> list[float]:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-3)
    images, labels = views(num_views)
    losses = []
    for _ in range(num_steps):
        network.train()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
            logits, projection = network.forward_train(images)
        assert projection is None or projection.shape == (num_views, 128)
        loss = F.cross_entropy(logits.float(), labels)
        if projection is not None:
            loss = loss + 0.01 * projection.float().square().mean()  # so that the head has gradients
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(("backbone", "num_steps"), [("resnet18", 8), ("mobilenet-v2", 20)])
def test_a_network_trains(backbone: str, num_steps: int, precision: str) -> None:
    losses = train_steps(build_network(resnet_recipe(backbone=backbone), 3, 0, 0), num_steps, precision)
    assert losses[0] == pytest.approx(1.1, abs=0.05)  # log 3: the classifier starts near zero
    assert losses[-1] < 0.3 * losses[0]


@pytest.mark.parametrize("backbone", ["resnet18", "mobilenet-v2"])
def test_frozen_batch_norm_stays_and_the_rest_trains(backbone: str, tmp_path: Path) -> None:
    path = save_weights(tmp_path / "weights.pth", backbone)
    network = build_network(resnet_recipe(backbone=backbone, weights=str(path), batch_norm="frozen"), 3, 0, 0)
    kinds = {f"backbone.{name}": type(module) for name, module in network.backbone.named_modules()}
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    losses = train_steps(network, 3)
    assert all(torch.isfinite(torch.tensor(losses)))
    for name, tensor in network.state_dict().items():
        if kinds.get(name.rpartition(".")[0]) is torch.nn.BatchNorm2d:
            assert torch.equal(tensor, before[name]), name  # neither steps nor weight decay nor statistics
        else:
            assert not torch.equal(tensor, before[name]), name


def test_frozen_batch_norm_takes_nothing_from_the_batch(weight_file: Path) -> None:
    images, _ = views()
    for batch_norm in ("frozen", "trained"):
        network = build_network(resnet_recipe(weights=str(weight_file), batch_norm=batch_norm), 3, 0, 0)
        with torch.no_grad():
            training, testing = network.train().features(images), network.eval().features(images)
        assert torch.equal(training, testing) == (batch_norm == "frozen")
        assert network.train().head is not None and network.head.training


def test_a_single_view_trains_on_running_statistics() -> None:
    """The last batch of an epoch may hold one view; at 32 pixels it leaves batch norm one value per channel."""
    network = build_network(resnet_recipe(batch_size=2, replay=1), 3, 0, 0)
    mean = network.backbone.bn1.running_mean.clone()
    assert torch.isfinite(torch.tensor(train_steps(network, 1, num_views=1)))
    assert torch.equal(network.backbone.bn1.running_mean, mean)
    assert network.backbone.bn1.training


def test_statistics_are_those_of_the_features() -> None:
    """As torch's own helper for averaged weights gathers them; training goes on with the old momentum."""
    network = build_network(resnet_recipe(), 3, 0, 0)
    theirs = copy.deepcopy(network)
    images = torch.randint(0, 256, (24, 3, 32, 32), dtype=torch.uint8)
    network.eval().backbone.bn1.running_var[0] = torch.inf  # as a test leaves it, and what is to be forgotten
    network.estimate_statistics(images.split(8))
    update_bn(images.split(8), theirs)
    for name, tensor in theirs.state_dict().items():
        torch.testing.assert_close(network.state_dict()[name], tensor, msg=name)
    assert {layer.momentum for layer in network.batch_norms} == {0.1} and len(network.batch_norms) == 20
    once = copy.deepcopy(network)
    network.estimate_statistics(images.split(8))  # nothing of before is left
    for name, tensor in once.backbone.state_dict().items():
        if not name.endswith("num_batches_tracked"):
            assert torch.equal(network.backbone.state_dict()[name], tensor), name


def test_frozen_statistics_are_not_estimated(weight_file: Path) -> None:
    network = build_network(resnet_recipe(weights=str(weight_file), batch_norm="frozen"), 3, 0, 0)
    before = copy.deepcopy(network.state_dict())
    network.estimate_statistics([torch.randint(0, 256, (8, 3, 32, 32), dtype=torch.uint8)])
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
