"""Data of one's own with words as labels, owners, one dataset a client, and Hugging Face data in memory."""

import numpy as np
import pytest
import torch
from PIL import Image

import fedloom as fl
from fedloom.core.errors import DataError
from fedloom.core.streams import Streams
from fedloom.data import PARTITIONS, from_arrays, from_clients, from_huggingface, from_torch, make_scenario
from hub_sets import FakeSet, X, Y

# --- words, owners, standardised features ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "owners", [np.arange(10) // 5 * 7, ["b", "c"] * 5, torch.arange(10) // 5], ids=["numbers", "words", "tensor"]
)
def test_owners_keep_a_share_of_their_own_samples_apart(owners):
    splits = from_arrays(X, Y, owners=owners)
    assert (splits.domains_are_owners, splits.owner_count) == (True, 2)
    assert torch.bincount(splits.train.domain).tolist() == [4, 4]
    assert torch.bincount(splits.test.domain).tolist() == [1, 1]
    assert splits.train.domains == tuple(str(name) for name in sorted(set(np.asarray(owners).tolist())))


def test_owners_of_a_test_set_may_be_others():
    splits = from_arrays(X, Y, X, Y, owners=np.arange(10) % 2, owners_test=np.arange(10) % 3)
    assert splits.test.domain.tolist() == (np.arange(10) % 3).tolist()
    assert (splits.owner_count, splits.train.domains) == (2, ("0", "1", "2"))
    assert fl.scenario(splits, val=0.0).test.sizes.tolist() == [4, 3]  # owner 2 is nobody's


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"owners": np.arange(10)}, r"no owner has samples enough to hold out 0\.2 of them \(10 samples"),
        ({"owners": np.arange(3)}, r"owners have shape \(3,\) .* need \(10,\)"),
        ({"owners": np.arange(10) / 2}, r"owners have .* dtype float64"),
        ({"owners": ["a", None] * 5}, r"owners have .* no gaps"),
        ({"owners": Y, "domain": Y, "domains": ["a", "b"]}, "owners and domain both say"),
        ({"owners_test": Y}, "owners_test and domain_test belong to x_test"),
        ({"domain": Y[:3], "domains": ["a", "b"]}, r"domain ids have shape \(3,\)"),
        ({"domain": np.full(10, 2), "domains": ["a", "b"]}, r"domain id 2 is outside 0 \.\. 1"),
        ({"test_share": 1.5}, r"test_share = 1\.5; need a share in \(0, 1\)"),
        ({"standardise": True}, r"standardise is for features \[n, d\]"),
        ({"normalise": "none"}, "normalise = 'none': input should be 'own', 'unit'"),
        ({"classes": ["a", "a"]}, "class name 'a' occurs twice"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_keys_that_do_not_fit_are_refused(keys, message):
    with pytest.raises(DataError, match=message):
        from_arrays(X, Y, **keys)


def test_lists_that_are_no_arrays_are_refused():
    with pytest.raises(DataError, match="no array can be made of this"):
        from_arrays([[1.0], [1.0, 2.0]], [0, 1])


def test_features_are_standardised_by_what_clients_train_on():
    x = np.random.default_rng(0).normal(5, 3, (100, 2))
    splits = from_arrays(x, np.arange(100) % 2, standardise=True)
    assert (splits.numeric_features, splits.train.normalisation) == ((0, 1), None)
    scenario = make_scenario("mine", splits, PARTITIONS.get("iid")(), clients=4, val=0.5, streams=Streams(0))
    used = splits.train.x[torch.from_numpy(scenario.train.order)].double()
    assert len(used) == 40
    assert scenario.normalisation["mean"] == pytest.approx(used.mean(0).tolist())
    assert scenario.normalisation["std"] == pytest.approx(used.std(0, correction=0).tolist())


# --- items of torch datasets -----------------------------------------------------------------------------------------


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter([])


class TooLong(torch.utils.data.Dataset):
    def __len__(self):
        return 5

    def __getitem__(self, row):
        if row > 2:
            raise IndexError(f"no item {row}")
        return X[row], 0


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (
            [(X[0], torch.tensor([1, 0]))],
            r"labels of shape \(1, 2\); one-hot labels \[n, C\] become class ids by y.argmax",
        ),
        ([(X[0], 0), (X[0], "a")], "labels of train are both words and numbers"),
        ([(X[0], 2**63)] * 3, "label 9223372036854775808 of train is no class"),
        ([], "train holds no items"),
        ([X[0]], r"item 0 of train is a ndarray; need \(sample, label\)"),
        ([(X[0], 0.5)], r"label 0 of train is 0\.5; need an integer"),
        ([(X[0], 0), (X[0][:3], 1)], r"item 1 of train has shape \(3, 8, 3\), item 0 \(8, 8, 3\)"),
        (Stream(), "train is a Stream without a length; make it a list"),
        (TooLong(), r"train states 5 items by __len__, and its item 3 raises IndexError \(no item 3\); mend __len__"),
        (iter([]), "train is a list_iterator without a length"),
    ],
    ids=["one-hot", "mixed", "wild", "none", "no pair", "real", "shapes", "stream", "too long", "iterator"],
)
def test_items_that_do_not_fit_are_refused(items, message):
    with pytest.raises(DataError, match=message):
        from_torch(items)


@pytest.mark.parametrize("label", [float, lambda y: [y], lambda y: torch.tensor([float(y)]), lambda y: np.array([y])])
def test_labels_in_other_clothes_are_whole_numbers(label):
    splits = from_torch([(X[row], label(row % 2)) for row in range(10)], [(X[row], row % 2) for row in range(4)])
    assert (splits.train.y.tolist(), splits.train.classes) == ([0, 1] * 5, ("0", "1"))


# --- one dataset a client --------------------------------------------------------------------------------------------


class Named(torch.utils.data.TensorDataset):
    classes = ("cat", "dog")


def pairs(count, label=int):
    return [(X[row % 10], label(row % 2)) for row in range(count)]


def test_client_k_holds_dataset_k():
    splits = from_clients([pairs(5), pairs(10), (X, Y)], names=["a", "b", "c"])
    assert (splits.owner_count, splits.train.domains) == (3, ("a", "b", "c"))
    assert torch.bincount(splits.train.domain).tolist() == [4, 8, 8]
    assert torch.bincount(splits.test.domain).tolist() == [1, 2, 2]
    flat = from_clients([(np.full((10, 1), float(client)), Y) for client in range(12)])
    scenario = fl.scenario(flat, val=0.0)
    assert [scenario.train_set.x[scenario.train.tensor(k)].unique().item() for k in range(12)] == list(range(12))


def test_clients_with_test_sets_of_their_own_or_one_for_all():
    own = from_clients([pairs(4), pairs(6)], [pairs(2), pairs(4)])
    assert torch.bincount(own.train.domain).tolist() == [4, 6]
    assert torch.bincount(own.test.domain).tolist() == [2, 4]
    common = from_clients([pairs(4), pairs(6)], (X, Y))
    assert (common.test.domain, len(common.test)) == (None, 10)


def test_class_names_of_the_datasets_are_kept():
    data = Named(torch.from_numpy(X), torch.from_numpy(Y))
    assert from_clients([data, data]).train.classes == ("cat", "dog")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([],), "the list is empty; need one dataset a client"),
        (([pairs(5), []],), "client 1 holds no items"),
        (([(X, Y), (X[:0], Y[:0])],), r"client 1 has samples of shape \(0, 8, 8, 3\)"),
        (([(X, Y), (X[:, :4], Y)],), r"client 1 holds bytes of shape \(4, 8, 3\) with whole labels, client 0 bytes of"),
        (([(X, Y), (X / 255, Y)],), "client 1 holds numbers of shape"),
        (([pairs(5), pairs(5, str)],), r"client 1 holds .* words as labels, client 0 .* whole labels"),
        (([pairs(5), pairs(5)], [pairs(5)]), "1 test sets for 2 clients"),
        (([pairs(5), 3],), "client 1 is a int without a length"),
        (([pairs(5)] * 2, None, ["a", "a"]), "1 different names for 2 clients"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_clients_that_do_not_fit_are_refused(arguments, message):
    clients, tests, names = (*arguments, None, None)[:3]
    with pytest.raises(DataError, match=message):
        from_clients(clients, tests, names=names)


# --- Hugging Face data in memory -------------------------------------------------------------------------------------


def test_plain_whole_numbers_as_labels_with_a_test_split():
    both = from_huggingface({"train": FakeSet(), "test": FakeSet().select(range(4))}, size=8)
    assert (len(both.train), len(both.test)) == (10, 4)
    assert both.train.classes == both.test.classes == ("0", "1")
    assert both.test.y.tolist() == [0, 1, 0, 1]
    assert (both.train.x.numpy() == X.transpose(0, 3, 1, 2)).all()
    assert len(from_huggingface(FakeSet(), size=8).test) == 2
    spelled = from_huggingface({"Train": FakeSet(label=[[1.0], [0.0]] * 5), "testing": FakeSet()}, size=8)
    assert (spelled.train.y.tolist()[:2], len(spelled.test)) == ([1, 0], 10)


@pytest.mark.parametrize(
    ("data", "keys", "message"),
    [
        ({"validation": FakeSet()}, {}, "no split 'train'; its splits are validation"),
        (FakeSet(), {"test_split": "test"}, "no split 'test'; a Dataset has no splits"),
        (FakeSet(), {"size": 0}, "size = 0: input should be greater"),
        ({"train": iter([])}, {}, "streamed data have no length"),
        (FakeSet(label=[0.5] * 10), {}, r"\(label\): 0\.5 is no label; need integers or words"),
        (FakeSet(label=[None] * 10), {}, r"\(label\): None is no label"),
        (FakeSet(image=[3] * 10), {}, r"\(image\): row 0 is a int; need pictures, or text="),
        (FakeSet(text=["good"] * 9 + [None]), {"text": "text"}, r"\(text\): row \d is no text"),
        ({"train": FakeSet(), "test": FakeSet(label=[7] * 10)}, {}, r"\(test: label\): label '7' is none of 0, 1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_hugging_face_data_that_do_not_fit_are_refused(data, keys, message):
    with pytest.raises(DataError, match=message):
        from_huggingface(data, **({"size": 8} | keys))


def test_labels_are_matched_by_name():
    train = FakeSet(["cat", "dog"])
    for test in (FakeSet(["dog", "cat", "eel"]), FakeSet(label=["dog", "cat"] * 5)):
        splits = from_huggingface({"train": train, "test": test}, size=8)
        assert (splits.train.classes, splits.test.y.tolist()) == (("cat", "dog"), [1, 0] * 5)


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        (["cat", "dog"], ["cat", "eel"], "label 'eel' is none of cat, dog"),
        (["cat", "dog"], None, r"\(test: label\): labels are numbers, and those of the training set have names"),
        (None, ["cat", "dog"], r"\(test: label\): labels have names, those of the training set have none"),
        (["cat", "dog"], ["dog"], r"\(test: label\): label 1 is none of the 1 names"),
    ],
)
def test_names_that_are_missing_or_unknown_are_refused(train, test, message):
    with pytest.raises(DataError, match=message):
        from_huggingface({"train": FakeSet(train), "test": FakeSet(test)}, size=8)


@pytest.mark.parametrize("kind", ["torch", "numpy", "pandas", "custom"])
def test_an_output_format_is_not_used(kind):
    splits = from_huggingface({"train": FakeSet(kind=kind), "test": FakeSet(kind=kind)}, size=8)
    assert (splits.train.x.numpy() == X.transpose(0, 3, 1, 2)).all()
    assert [note[:13] for note in splits.notes] == ["set_transform"] * (kind == "custom")


def test_texts_are_split_as_those_of_other_sources():
    def words(text, **keys):
        return from_huggingface(FakeSet(text=[text] * 10), text="text", length=3, **keys).train.words

    assert words("good film") == ("film", "good")
    assert words("ab a", tokens="characters") == ("a", "b")
    with pytest.raises(DataError, match=r"source hf: data \(text\): texts have no spaces .* `tokens: characters`"):
        words("\u5929\u5730" * 60)


@pytest.mark.parametrize("only_test", [False, True])
def test_deep_pictures_keep_their_levels(only_test):
    deep = FakeSet(image=[Image.fromarray(x[..., 0].astype(np.uint16) * 16 + 7) for x in X])  # 12 bits
    train = FakeSet(image=[Image.fromarray(x[..., 0]) for x in X]) if only_test else deep
    splits = from_huggingface({"train": train, "test": deep}, size=8, channels=1)
    assert splits.train.x.dtype == splits.test.x.dtype == torch.float32
    assert np.abs(splits.test.x[:, 0].numpy() * 257 - (X[..., 0] * 16.0 + 7)).max() < 1e-2
    assert "more than 256 levels" in splits.notes[0]


def test_the_real_library():
    datasets = pytest.importorskip("datasets", reason="needs the extra hub")
    pictures = datasets.Dataset.from_dict({"image": [Image.fromarray(x) for x in X] * 3, "label": Y.tolist() * 3})
    parts = datasets.DatasetDict({"train": pictures, "test": pictures.select(range(10))})
    scenario = fl.scenario(parts, clients=3)
    assert (scenario.class_names, len(scenario.test_set), scenario.clients) == (("0", "1"), 10, 3)
    plain = from_huggingface(parts, size=8)
    for kind in ("torch", "numpy", "pandas", "arrow"):
        formatted = from_huggingface(parts.with_format(kind), size=8)
        assert torch.equal(formatted.train.x, plain.train.x)
        assert torch.equal(formatted.train.y, plain.train.y)
    assert "not applied" in from_huggingface(pictures.with_transform(dict), size=8).notes[0]
    named = pictures.cast_column("label", datasets.ClassLabel(names=["cat", "dog"]))
    reordered = pictures.cast_column("label", datasets.ClassLabel(names=["dog", "cat"]))
    assert from_huggingface({"train": named, "test": reordered}, size=8).test.y.tolist() == (1 - Y).tolist() * 3


def test_the_digest_knows_of_standardised_features():
    x = np.random.default_rng(0).normal(5, 3, (100, 2))
    made = [fl.scenario(from_arrays(x, np.arange(100) % 2, standardise=on), clients=4) for on in (True, True, False)]
    assert made[0].digest() == made[1].digest() != made[2].digest()
