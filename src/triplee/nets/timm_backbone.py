"""Any image model of timm as a backbone (`timm:NAME`), for those who have the extra installed.

Comes in: normalised images (V,3,H,W); goes out: the model's pooled features (V, num_features).
Building one never touches the network; timm's own weights come with `pretrained=True` alone.
"""

from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from triplee.settings import InputError, nearest


class TimmBackbone(nn.Module):
    def __init__(self, name: str, image_size: int) -> None:
        super().__init__()
        self.model = make_timm_model(name, image_size)
        config: Any = self.model.pretrained_cfg
        self.mean, self.std = tuple(config["mean"]), tuple(config["std"])
        # Measured: a model's own `num_features` may be the width before its last layers.
        self.num_features = _measure_features(self.model, name, image_size)

    def forward(self, images: Tensor) -> Tensor:
        return self.model(images)


def make_timm_model(name: str, image_size: int, pretrained: bool = False) -> nn.Module:
    """timm's model of that name without its classifier; what goes wrong in fetching weights is the caller's."""
    timm = _import_timm(name)
    options: dict[str, Any] = {"num_classes": 0}
    if _pretrained_config(timm, name).fixed_input_size:
        options["img_size"] = image_size
    if pretrained:
        return timm.create_model(name, pretrained=True, **options)
    try:
        model = timm.create_model(name, pretrained=False, **options)
    except Exception as error:  # hundreds of models, each with its own checks of the size
        raise _unfit(name, image_size, error) from None
    _turn_off_random_dropping(model)
    return model


def classifier_names(name: str) -> tuple[str, ...]:
    """The layers of a timm weight file that are left out: its classifiers."""
    names = _pretrained_config(_import_timm(name), name).classifier or ()
    return (names,) if isinstance(names, str) else tuple(names)


def _import_timm(name: str) -> ModuleType:
    try:
        import timm  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        raise InputError(f"timm:{name} needs timm ({error}): pip install 'triplee[timm]'") from None
    except Exception as error:  # a torchvision built for another torch raises RuntimeError
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise InputError(
            f"timm:{name} needs timm, which cannot be imported ({reason}): "
            "pip install 'triplee[timm]' and a torchvision that fits this torch"
        ) from None
    return timm


def _pretrained_config(timm: ModuleType, name: str) -> Any:
    architecture, _, tag = name.partition(".")
    if not timm.is_model(architecture):
        raise InputError(f"unknown timm model {architecture!r}: {nearest(architecture, timm.list_models())}")
    try:
        return timm.get_pretrained_cfg(name)
    except RuntimeError:
        tags = [full.partition(".")[2] for full in timm.list_pretrained(f"{architecture}.*")]
        raise InputError(f"unknown weights {tag!r} of timm model {architecture!r}: {nearest(tag, tags)}") from None


def _turn_off_random_dropping(model: nn.Module) -> None:
    """Dropout and dropped paths draw inside the step, where a resumed run could not draw the same again."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for rate in ("drop_prob", "drop_rate"):
            if isinstance(getattr(module, rate, None), float):
                setattr(module, rate, 0.0)


def _measure_features(model: nn.Module, name: str, image_size: int) -> int:
    try:
        with torch.no_grad():
            features = model.eval()(torch.zeros(1, 3, image_size, image_size))
    except Exception as error:
        raise _unfit(name, image_size, error) from None
    if not isinstance(features, Tensor) or features.ndim != 2:
        raise InputError(f"timm:{name} gives no pooled features: choose an image classifier")
    return features.shape[1]


def _unfit(name: str, image_size: int, error: Exception) -> InputError:
    return InputError(f"image_size {image_size} does not fit timm:{name} ({first_line(error)}): choose another size")


def first_line(error: Exception) -> str:
    """What an error of somebody else's says, cut to one line."""
    return (str(error).splitlines() or [type(error).__name__])[0]
