"""The 20 superclasses of CIFAR-100 by name (Krizhevsky 2009), for files that hold only the 100 fine labels."""

from __future__ import annotations

from collections.abc import Sequence

from fedloom.core.errors import DataError, suggest_name

SUPERCLASSES: dict[str, tuple[str, ...]] = {
    "aquatic_mammals": ("beaver", "dolphin", "otter", "seal", "whale"),
    "fish": ("aquarium_fish", "flatfish", "ray", "shark", "trout"),
    "flowers": ("orchid", "poppy", "rose", "sunflower", "tulip"),
    "food_containers": ("bottle", "bowl", "can", "cup", "plate"),
    "fruit_and_vegetables": ("apple", "mushroom", "orange", "pear", "sweet_pepper"),
    "household_electrical_devices": ("clock", "keyboard", "lamp", "telephone", "television"),
    "household_furniture": ("bed", "chair", "couch", "table", "wardrobe"),
    "insects": ("bee", "beetle", "butterfly", "caterpillar", "cockroach"),
    "large_carnivores": ("bear", "leopard", "lion", "tiger", "wolf"),
    "large_man-made_outdoor_things": ("bridge", "castle", "house", "road", "skyscraper"),
    "large_natural_outdoor_scenes": ("cloud", "forest", "mountain", "plain", "sea"),
    "large_omnivores_and_herbivores": ("camel", "cattle", "chimpanzee", "elephant", "kangaroo"),
    "medium_mammals": ("fox", "porcupine", "possum", "raccoon", "skunk"),
    "non-insect_invertebrates": ("crab", "lobster", "snail", "spider", "worm"),
    "people": ("baby", "boy", "girl", "man", "woman"),
    "reptiles": ("crocodile", "dinosaur", "lizard", "snake", "turtle"),
    "small_mammals": ("hamster", "mouse", "rabbit", "shrew", "squirrel"),
    "trees": ("maple_tree", "oak_tree", "palm_tree", "pine_tree", "willow_tree"),
    "vehicles_1": ("bicycle", "bus", "motorcycle", "pickup_truck", "train"),
    "vehicles_2": ("lawn_mower", "rocket", "streetcar", "tank", "tractor"),
}
"""Superclass -> its five classes; the order is that of the official coarse labels 0 .. 19."""

CLASSES = tuple(sorted(name for names in SUPERCLASSES.values() for name in names))
"""The 100 classes; the order is that of the official fine labels 0 .. 99."""


def coarse_labels(classes: Sequence[str]) -> list[int]:
    """Return the superclass (0 .. 19) of each of the 100 classes, in their order.

    Classes called "0" .. "99" are the official fine labels. Raises `DataError` for other classes than CIFAR-100's.
    """
    names = CLASSES if list(classes) == [str(label) for label in range(100)] else classes
    superclass_of = {name: label for label, members in enumerate(SUPERCLASSES.values()) for name in members}
    if len(names) != len(CLASSES):
        raise DataError(f"superclasses are CIFAR-100's: need its 100 classes, got {len(names)}")
    for name in names:
        if name not in superclass_of:
            raise DataError(
                f"superclasses are CIFAR-100's: it has no class '{name}'; {suggest_name(name, superclass_of)}"
            )
    if len(set(names)) < len(names):
        raise DataError("superclasses are CIFAR-100's: a class is named twice")
    return [superclass_of[name] for name in names]
