"""Every published dataset by name, with its addresses, its checksums and their publisher.

Addresses and MD5 sums of MNIST, FashionMNIST, SVHN and USPS: torchvision, torchvision/datasets/{mnist,svhn,usps}.py,
https://github.com/pytorch/vision. Those of CIFAR: https://www.cs.toronto.edu/~kriz/cifar.html.
"""

from pathlib import Path

from cdfl.data.dataset import Dataset
from cdfl.data.sources import cifar, library_datasets, mnist
from cdfl.data.sources.ccpd import ccpd
from cdfl.data.sources.image_folders import mini_imagenet
from cdfl.data.sources.sklearn_digits import read_digits
from cdfl.data.sources.source import RemoteFile, Source
from cdfl.data.sources.svhn import svhn
from cdfl.data.sources.usps import usps

TORCHVISION = "https://github.com/pytorch/vision/tree/main/torchvision/datasets"
CIFAR = "https://www.cs.toronto.edu/~kriz/cifar.html"
MNIST_HOSTS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/")
FASHION_HOSTS = ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",)


def _files(hosts: tuple[str, ...], md5_of: dict[str, str]) -> tuple[RemoteFile, ...]:
    return tuple(RemoteFile(name, tuple(host + name for host in hosts), md5) for name, md5 in md5_of.items())


def _digits(folder: Path) -> Dataset:
    return read_digits()


def _folder(folder: Path) -> Path:
    return folder


_ALL = [
    Source(
        "digits", "handwritten digits, 8x8 grey, inside scikit-learn", 1_297, 500, 10, _digits,
        published="https://archive.ics.uci.edu/dataset/80", bundled="scikit-learn",
    ),
    Source(
        "mnist", "handwritten digits, 28x28 grey", 60_000, 10_000, 10, mnist.mnist, TORCHVISION,
        _files(MNIST_HOSTS, {
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        }),
    ),
    Source(
        "fashion-mnist", "clothing, 28x28 grey", 60_000, 10_000, 10, mnist.fashion_mnist, TORCHVISION,
        _files(FASHION_HOSTS, {
            "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        }),
    ),
    Source(
        "usps", "handwritten digits of letters, 16x16 grey", 7_291, 2_007, 10, usps, TORCHVISION,
        _files(("https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass/",), {
            "usps.bz2": "ec16c51db3855ca6c91edd34d0e9b197",
            "usps.t.bz2": "8ea070ee2aca1ac39742fdd1ef5ed118",
        }),
    ),
    Source(
        "svhn", "house-number digits, 32x32 colour", 73_257, 26_032, 10, svhn, TORCHVISION,
        _files(("http://ufldl.stanford.edu/housenumbers/",), {
            "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
            "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
        }),
    ),
    Source(
        "cifar-10", "objects in 10 classes, 32x32 colour", 50_000, 10_000, 10, cifar.cifar_10, CIFAR,
        _files(("https://www.cs.toronto.edu/~kriz/",), {"cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530"}),
        other_folders=("cifar10",),
    ),
    Source(
        "cifar-100", "objects in 100 classes, 32x32 colour", 50_000, 10_000, 100, cifar.cifar_100, CIFAR,
        _files(("https://www.cs.toronto.edu/~kriz/",), {"cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8"}),
        other_folders=("cifar100",),
    ),
    Source(
        "mini-imagenet", "100 classes of ImageNet, 84x84 colour", 48_000, 12_000, 100, mini_imagenet,
        published="https://arxiv.org/abs/1606.04080",
        by_hand="the 100 class folders of MiniImageNet, 600 images each, or one .zip or .tar archive of them "
        "(made from ImageNet, https://image-net.org/download, which asks for an account)",
    ),
    Source(
        "ccpd", "digits of Chinese licence plates, cut to 32x32 colour", 80_000, 20_000, 10, ccpd,
        published="https://github.com/detectRecog/CCPD",
        by_hand="the folder ccpd_base of CCPD2019.tar.xz (links at https://github.com/detectRecog/CCPD)",
        other_folders=("plate-digits-ccpd",),
    ),
    Source(
        "breast-cancer", "tumours, 30 measures of their cells", 569, 0, 2, library_datasets.breast_cancer,
        published="https://archive.ics.uci.edu/dataset/17", bundled="scikit-learn", kind="table",
    ),
    Source(
        "wine", "wines of three cultivars, 13 measures", 178, 0, 3, library_datasets.wine,
        published="https://archive.ics.uci.edu/dataset/109", bundled="scikit-learn", kind="table",
    ),
    Source(
        "diabetes", "patients, 10 measures, and how their disease progressed", 442, 0, 0, library_datasets.diabetes,
        published="https://www4.stat.ncsu.edu/~boos/var.select/diabetes.html", bundled="scikit-learn", kind="table",
    ),
    Source(
        "italy-power-demand", "electric power in Italy, 24 hours of 1,096 days", 1_096, 0, 0,
        library_datasets.italy_power_demand,
        published="https://www.cs.ucr.edu/~eamonn/time_series_data_2018/", bundled="sktime", kind="series",
    ),
    Source(
        "handbook", "paragraphs of the Debian Administrator's Handbook in six languages", 11_147, 0, 0, _folder,
        published="https://debian-handbook.info",
        by_hand="en.txt, de.txt, fr.txt, es.txt, it.txt and pt.txt, one paragraph a line (the book in each language; "
        "Debian's package debian-handbook has it)",
        kind="texts",
    ),
]  # fmt: skip

SOURCES: dict[str, Source] = {source.name: source for source in _ALL}
