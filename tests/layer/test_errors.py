"""Bad input gets one clear error: it names the argument, the value and what would be right."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from torch_pru import PRU, GroupedLinear, PRUCell, PRUError, PyramidalTransform, load_reference_weights
from torch_pru.ops import recurrence

from .comparing import paper


def test_it_is_both_errors():
    assert issubclass(PRUError, ValueError)
    assert issubclass(PRUError, RuntimeError)


def refuses(call, *fragments: str) -> None:
    with pytest.raises(PRUError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    for fragment in fragments:
        assert fragment in message, message


@pytest.mark.parametrize(
    ("arguments", "options", "fragments"),
    [
        # sizes that do not divide
        ((400, 1401), {}, ("groups=4", "hidden_size=1401", "use 1 or 3")),
        ((401, 1400), {}, ("input_size=401", "levels=2", "at most levels=1")),
        ((602, 600), {"levels": 4}, ("input_size=602", "levels=4", "at most levels=2")),
        ((12, 14, 2), {"levels": 3, "groups": 2}, ("layer 1", "14", "levels=3", "at most levels=2")),
        ((8, 10), {"context_transform": "pyramidal", "levels": 3}, ("hidden_size=10", "at most levels=2")),
        ((8, 16), {"level_split": "equal", "levels": 3}, ("hidden_size=16", "levels=3", "multiple of 3")),
        ((8, 3), {"groups": 1}, ("hidden_size=3", "levels=2", "at most levels=1")),
        ((9, 8), {"input_transform": "grouped"}, ("groups=4", "input_size=9")),
        ((8, 8), {"input_transform": "grouped", "input_groups": 3}, ("input_groups=3", "input_size=8")),
        ((8, 8), {"input_groups": 5}, ("input_groups=5", "at most")),
        # levels so many that 2**levels must not be computed
        ((2, 3), {"levels": 10**30}, ("levels", "2**63 - 1")),
        ((2, 3), {"levels": 10**18}, ("input_size=2", "at most levels=2")),
        ((8, 8), {"levels": 10**9}, ("input_size=8", "at most levels=4")),
        ((2**40, 2**40), {"levels": 10**9, "level_split": "equal"}, ("at most levels=41",)),
        ((2**60, 6), {"levels": 50}, ("hidden_size=6", "at most levels=2")),
        # numbers that are none
        ((0, 8), {}, ("input_size=0", "greater than zero")),
        ((8, -8), {}, ("hidden_size=-8", "greater than zero")),
        ((8, 8.0), {}, ("hidden_size=8.0", "type int")),
        ((8, 8, 0), {}, ("num_layers=0", "greater than zero")),
        ((8, 8, True), {}, ("num_layers=True", "type int")),
        ((8, 8), {"levels": 0}, ("levels=0", "positive integer")),
        ((8, 8), {"groups": 0}, ("groups=0", "positive integer")),
        ((8, 8), {"groups": "4"}, ("groups='4'", "integer")),
        ((8, 8), {"input_groups": 0}, ("input_groups=0", "positive integer")),
        ((8, 8), {"input_groups": 2, "input_transform": "linear"}, ("input_groups=2", "'grouped'")),
        # what is no bool
        ((8, 8), {"bias": "False"}, ("bias='False'", "True or False")),
        ((8, 8), {"batch_first": "False"}, ("batch_first='False'", "True or False")),
        ((8, 8), {"bidirectional": 2}, ("bidirectional=2", "True or False")),
        # dtypes
        ((8, 8), {"dtype": torch.complex64}, ("dtype=torch.complex64", "real floating-point")),
        ((8, 8), {"dtype": torch.int32}, ("dtype=torch.int32", "real floating-point")),
        ((8, 8), {"dtype": "float32"}, ("dtype='float32'", "torch.float32")),
        # windows
        ((8, 8), {"pool_window": 4}, ("pool_window=4", "odd")),
        ((8, 8), {"pool_window": -1}, ("pool_window=-1", "odd")),
        ((8, 8), {"pool_window": 3.0}, ("pool_window=3.0", "odd")),
        ((8, 8), {"pool_window": "3"}, ("pool_window='3'", "odd")),
        ((8, 8), {"pool_window": (3, 3)}, ("pool_window=(3, 3)", "levels=2", "1")),
        ((8, 8), {"pool_window": (3, 2), "levels": 3}, ("pool_window=(3, 2)", "odd")),
        ((8, 8), {"pooling": "skip", "pool_window": 5}, ("pool_window=5", "skip")),
        # unknown names
        ((8, 8), {"pooling": "mean"}, ("pooling='mean'", "'average', 'max', 'skip' or 'convolution'")),
        ((8, 8), {"pooling": "avrage"}, ("pooling='avrage'", "did you mean 'average'?")),
        ((8, 8), {"level_split": "half"}, ("level_split='half'", "'halving'", "'equal'")),
        (
            (8, 8),
            {"input_transform": "dense"},
            ("input_transform='dense'", "'linear'", "'grouped'", "'pyramidal'"),
        ),
        ((8, 8), {"context_transform": None}, ("context_transform=None", "'linear'")),
        ((8, 8), {"init": "xavier"}, ("init='xavier'", "'authors'", "'orthogonal'", "'lstm'")),
        ((8, 8), {"backend": "triton"}, ("backend='triton'", "'auto'", "'reference'", "'loop'", "'cuda'")),
        ((8, 8), {"residual": "yes"}, ("residual='yes'", "'auto'", "True", "False")),
        ((8, 8), {"residual": 1}, ("residual=1", "'auto'")),
        ((8, 12), {"residual": True}, ("residual=True", "input_size == hidden_size; got 8 and 12")),
        ((8, 8, 2), {"residual": True, "bidirectional": True}, ("layer 1", "residual=True", "16")),
        # unknown names in options that this layer has no use for are still unknown
        ((8, 8), {"input_transform": "linear", "pooling": "mean"}, ("pooling='mean'",)),
        ((8, 8), {"input_transform": "linear", "level_split": "half"}, ("level_split='half'",)),
        ((8, 8), {"context_transform": "linear", "groups": 0}, ("groups=0",)),
        ((8, 8), {"input_transform": "linear", "levels": 0}, ("levels=0",)),
        # probabilities
        ((8, 8), {"weight_drop": 1.0}, ("weight_drop=1.0", "[0, 1)")),
        ((8, 8), {"weight_drop": -0.1}, ("weight_drop=-0.1", "[0, 1)")),
        ((8, 8), {"weight_drop": float("nan")}, ("weight_drop=nan", "[0, 1)")),
        ((8, 8), {"weight_drop": None}, ("weight_drop=None", "[0, 1)")),
        ((8, 8, 2), {"dropout": 1.5}, ("dropout=1.5", "[0, 1]")),
        ((8, 8, 2), {"dropout": True}, ("dropout=True", "[0, 1]")),
        ((8, 8), {"proj_size": 8}, ("proj_size=8", "smaller than hidden_size=8")),
        ((8, 8), {"proj_size": -1}, ("proj_size=-1", "positive integer")),
        ((8, 8), {"proj_size": 2.0}, ("proj_size=2.0", "integer")),
        ((8, 8), {"proj_size": 6}, ("groups=4 does not divide proj_size=6", "use 1 or 2")),
    ],
    ids=str,
)
def test_constructor(arguments: tuple, options: dict, fragments: tuple[str, ...]):
    refuses(lambda: PRU(*arguments, **paper(options)), *fragments)


@pytest.mark.parametrize(
    ("arguments", "options", "fragments"),
    [
        ((32, 64), {"input_transform": "linear", "levels": 2}, ("levels=2", "no effect", "pyramidal")),
        ((32, 64), {"input_transform": "grouped", "levels": 3}, ("levels=3", "no effect")),
        ((32, 64), {"context_transform": "linear", "groups": 2}, ("groups=2", "no effect", "grouped")),
        ((32, 64), {"context_transform": "pyramidal", "groups": 2}, ("groups=2", "no effect")),
        ((32, 64), {"input_transform": "linear", "pooling": "max"}, ("pooling='max'", "no effect")),
        ((32, 64), {"levels": 1, "pooling": "max"}, ("pooling='max'", "one level")),
        ((32, 64), {"levels": 1, "level_split": "equal"}, ("level_split='equal'", "one level")),
        ((32, 64), {"levels": 1, "pool_window": 5}, ("pool_window=5", "one level")),
        ((1, 50), {"pooling": "skip"}, ("pooling='skip'", "one level")),  # "auto" is one level here
    ],
    ids=str,
)
def test_options_without_effect(arguments: tuple, options: dict, fragments: tuple[str, ...]):
    for make in (PRU, PRUCell):
        refuses(lambda make=make: make(*arguments, **options), *fragments)


def test_an_option_that_one_layer_uses_is_fine():
    assert PRU(1, 64, 2, pooling="max").levels == (1, 2)


@pytest.mark.parametrize(
    "call",
    [
        lambda make: make(8, 8.0),
        lambda make: make(8.0, 8),
        lambda make: make("8", 8),
        lambda make: make(8, 8, dtype="float32"),
        lambda make: make(8, 8, unknown=1),
        lambda make: make(8),
        lambda make: make(8, 8, num_layers=2.0),
        lambda make: make(8, 8, bias=1),
        lambda make: make(8, 8, batch_first=0),
    ],
)
def test_type_errors_of_nn_lstm(call):
    with pytest.raises(TypeError):
        call(PRU)
    if torch.__version__ >= "2.11":  # before that, nn.LSTM took integers for flags
        with pytest.raises(TypeError):
            call(nn.LSTM)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda make: make(0, 8), r"input_size must be greater than zero"),
        (lambda make: make(8, -1), r"hidden_size must be greater than zero"),
        (lambda make: make(8, 8, 0), r"num_layers must be greater than zero"),
        (lambda make: make("8", 8), r"input_size should be of type int, got: str"),
        (lambda make: make(8, 8.0), r"hidden_size should be of type int, got: float"),
        (lambda make: make(8, 8, bias=1), r"bias should be of type bool, got: int"),
        (lambda make: make(8, 8)(ones(8)), r"Expected input to be 2D .*or 3D, got 1D instead"),
        (lambda make: make(8, 8)(ones(0, 2, 8)), r"Expected sequence length to be larger than 0 in RNN"),
        (
            lambda make: make(8, 8)(ones(3, 2, 7)),
            r"input\.size\(-1\) must be equal to input_size\. Expected 8, got 7",
        ),
        (
            lambda make: make(8, 8)(ones(3, 2, 8, dtype=torch.float64)),
            r"RNN input dtype \(torch\.float64\) does not match weight dtype \(torch\.float32\)\. "
            r"Convert input: input\.to\(torch\.float32\), or convert model: model\.to\(torch\.float64\)",
        ),
        (
            lambda make: make(8, 8)(ones(3, 2, 8), (ones(1, 2, 8), ones(1, 2, 7))),
            r"Expected hidden.*size.*got",
        ),
    ],
)
def test_the_words_of_nn_lstm(call, words: str):
    """PyTorch's own tests, and code that catches errors of ``nn.LSTM``, look for them."""
    with pytest.raises(PRUError, match=words):
        call(PRU)
    if torch.__version__ >= "2.13":  # some are new in it
        with pytest.raises((ValueError, TypeError, RuntimeError), match=words):
            call(nn.LSTM)


@pytest.mark.parametrize(
    ("features", "h", "c", "words"),
    [
        ((2, 7), (2, 8), (2, 8), r"input has inconsistent input_size: got 7 expected 8"),
        ((2, 8), (2, 9), (2, 8), r"hidden0 has inconsistent hidden_size: got 9, expected 8"),
        ((2, 8), (3, 8), (3, 8), r"Input batch size 2 doesn't match hidden0 batch size 3"),
        ((2, 8), (2, 1, 8), (2, 8), r"Expected hx\[0\] to be 1D or 2D, got 3D instead"),
        ((1, 2, 8), (2, 8), (2, 8), r"Expected input to be 1D or 2D, got 3D instead"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_words_of_nn_lstm_cell(features: tuple, h: tuple, c: tuple, words: str, dtype: torch.dtype):
    """Shapes come before dtypes, as there."""
    x, hx = ones(*features, dtype=dtype), (ones(*h, dtype=dtype), ones(*c, dtype=dtype))
    for make in (PRUCell, nn.LSTMCell):
        with pytest.raises((ValueError, RuntimeError), match=words):
            make(8, 8)(x, hx)


@pytest.mark.parametrize("number", [10**5000, -(10**5000)], ids=["positive", "negative"])
@pytest.mark.parametrize("name", ["input_size", "hidden_size", "num_layers", "levels", "groups"])
def test_integers_too_long_to_be_shown(name: str, number: int):
    refuses(lambda: PRU(**paper({"input_size": 8, "hidden_size": 8, name: number})), name, "2**63 - 1")


@pytest.mark.parametrize("rate", [np.float32(0.25), np.float64(0.25), np.int64(0), 0, Fraction(1, 4)])
def test_any_real_number_is_a_probability(rate: object):
    """As for ``nn.LSTM``; what is kept is a float."""
    pru = PRU(8, 8, 2, dropout=rate, weight_drop=rate, levels=2, groups=4)
    pru(ones(3, 2, 8))
    assert pru.dropout == pru.weight_drop == rate
    assert type(pru.dropout) is type(pru.weight_drop) is float


def ones(*shape: int, **kind: object) -> torch.Tensor:
    return torch.ones(shape, **kind)


@pytest.mark.parametrize(
    ("x", "hx", "fragments"),
    [
        (ones(3, 2, 7), None, ("input_size", "Expected 8, got 7")),
        (ones(8), None, ("input", "2D (unbatched) or 3D", "got 1D")),
        (ones(1, 3, 2, 8), None, ("input", "2D (unbatched) or 3D", "got 4D")),
        (ones(0, 2, 8), None, ("input", "(0, 2, 8)", "length to be larger than 0")),
        (ones(0, 8), None, ("input", "(0, 8)", "length to be larger than 0")),
        (ones(3, 2, 8, dtype=torch.float64), None, ("input", "float64", "float32")),
        (ones(3, 2, 8, dtype=torch.int64), None, ("input", "int64", "float32")),
        (ones(3, 2, 8, device="meta"), None, ("input", "meta", "cpu")),
        (np.ones((3, 2, 8), dtype=np.float32), None, ("input", "ndarray", "Tensor")),
        (ones(3, 2, 8), ones(2, 2, 8), ("hx", "pair", "Tensor")),
        (ones(3, 2, 8), (ones(2, 2, 8),), ("hx", "pair")),
        (ones(3, 2, 8), (ones(2, 2, 8), None), ("hx", "c_0", "NoneType")),
        (ones(3, 2, 8), (ones(1, 2, 8), ones(2, 2, 8)), ("h_0", "(1, 2, 8)", "(2, 2, 8)")),
        (ones(3, 2, 8), (ones(2, 2, 8), ones(2, 3, 8)), ("c_0", "(2, 3, 8)", "(2, 2, 8)")),
        (ones(3, 2, 8), (ones(2, 8), ones(2, 8)), ("h_0", "(2, 8)", "(2, 2, 8)")),
        (ones(3, 8), (ones(2, 1, 8), ones(2, 1, 8)), ("h_0", "(2, 1, 8)", "(2, 8)")),
        (
            ones(3, 2, 8),
            (ones(2, 2, 8, dtype=torch.float64), ones(2, 2, 8)),
            ("hx: h_0", "float64", "h_0.to(torch.float32)"),
        ),
        (ones(3, 2, 8), (ones(2, 2, 8), ones(2, 2, 8, device="meta")), ("c_0", "meta", "cpu")),
    ],
    ids=lambda value: None if isinstance(value, tuple) else "",
)
def test_forward(x: torch.Tensor, hx: object, fragments: tuple[str, ...]):
    refuses(lambda: PRU(8, 8, 2, levels=2, groups=4)(x, hx), *fragments)


def test_forward_batch_first():
    refuses(lambda: PRU(8, 8, batch_first=True, levels=2, groups=4)(ones(2, 0, 8)), "(2, 0, 8)", "length")
    PRU(8, 8, batch_first=True, levels=2, groups=4)(ones(0, 2, 8))  # batch 0 is fine


def test_packed_input_is_checked_too():
    packed = nn.utils.rnn.pack_sequence([ones(2, 7), ones(1, 7)])
    refuses(lambda: PRU(8, 8, levels=2, groups=4)(packed), "input_size", "Expected 8, got 7")
    packed = nn.utils.rnn.pack_sequence([ones(2, 8), ones(1, 8)])
    refuses(
        lambda: PRU(8, 8, levels=2, groups=4)(packed, (ones(1, 3, 8), ones(1, 3, 8))),
        "h_0",
        "(1, 3, 8)",
        "(1, 2, 8)",
    )
    refuses(lambda: PRU(8, 8, dtype=torch.float64, levels=2, groups=4)(packed), "input", "float32", "float64")


@pytest.mark.parametrize("shape", [(), (1, 1)])
def test_packed_data_has_two_dimensions(shape: tuple[int, ...]):
    packed = nn.utils.rnn.pack_sequence([ones(2, *shape), ones(1, *shape)])
    refuses(lambda: PRU(1, 8, levels=1, groups=4)(packed), "packed", str((3, *shape)), "(steps, 1)")


def packed(rows: int, sizes: object, order: object = None, back: object = None) -> PackedSequence:
    """A packed sequence whose fields PyTorch has not checked."""
    return tuple.__new__(PackedSequence, (ones(rows, 8), sizes, order, back))


@pytest.mark.parametrize(
    ("sequence", "fragments"),
    [
        (packed(7, torch.tensor([3, 1, 2, 1])), ("batch_sizes", "[3, 1, 2, 1]", "must not increase")),
        (packed(3, torch.tensor([2, 0, 1])), ("batch_sizes", "[2, 0, 1]", "positive")),
        (packed(2, torch.tensor([3, -1])), ("batch_sizes", "[3, -1]", "positive")),
        (packed(0, torch.tensor([], dtype=torch.int64)), ("batch_sizes", "[]", "positive")),
        (packed(9, torch.arange(9, 0, -1)), ("add up to 45", "9 rows")),
        (packed(3, torch.tensor([2, 2])), ("add up to 4", "3 rows")),
        (packed(5, torch.tensor([2, 2])), ("add up to 4", "5 rows")),
        (packed(4, torch.tensor([2, 2], dtype=torch.int32)), ("batch_sizes", "int64")),
        (packed(4, torch.tensor([2.0, 2.0])), ("batch_sizes", "int64")),
        (packed(4, torch.tensor([[2, 2]])), ("batch_sizes", "one-dimensional")),
        (packed(4, torch.tensor([2, 2], device="meta")), ("batch_sizes", "CPU")),
        (packed(4, [2, 2]), ("batch_sizes", "tensor")),
        (packed(4, torch.tensor([2, 2]), torch.tensor([0, 2])), ("sorted_indices", "0 to 1")),
        (packed(4, torch.tensor([2, 2]), None, torch.tensor([-1, 0])), ("unsorted_indices", "0 to 1")),
        (packed(4, torch.tensor([2, 2]), torch.tensor([0])), ("sorted_indices", "(1,)", "(2,)")),
        (packed(4, torch.tensor([2, 2]), torch.tensor([0.0, 1.0])), ("sorted_indices", "int64")),
        (packed(4, torch.tensor([2, 2]), [0, 1]), ("sorted_indices", "int64")),
        (packed(4, torch.tensor([2, 2]), torch.tensor([0, 1], device="meta")), ("sorted_indices", "cpu")),
    ],
    ids=lambda value: str(value) if isinstance(value, tuple) and isinstance(value[0], str) else "",
)
@pytest.mark.parametrize("stack", [{}, {"num_layers": 2, "bidirectional": True}], ids=str)
def test_invalid_packed_sequences(sequence: PackedSequence, fragments: tuple[str, ...], stack: dict):
    """Some of them corrupt memory or abort the process when they reach PyTorch's native code."""
    refuses(lambda: PRU(8, 8, **paper(stack))(sequence), "packed input", *fragments)


def test_packed_data_must_be_a_tensor():
    sequence = tuple.__new__(PackedSequence, ([1.0], torch.tensor([1]), None, None))
    refuses(lambda: PRU(8, 8, levels=2, groups=4)(sequence), "input", "list", "Tensor")


def test_a_dtype_is_looked_at_again_where_a_layer_was_converted():
    z, converted = ones(3, 2, 8, dtype=torch.complex64), PRU(8, 8, levels=2, groups=4)
    with pytest.warns(UserWarning, match="Complex modules"):
        converted.to(torch.complex64)
    refuses(lambda: converted(z), "input", "complex64", "real floating-point")
    mixed = PRU(8, 8, 2, levels=2, groups=4)
    mixed.weight_hh_l1.data = mixed.weight_hh_l1.data.double()
    refuses(lambda: mixed(ones(3, 2, 8)), "input of weight_hh_l1", "float32", "float64")
    mixed = PRU(8, 8, bidirectional=True, levels=2, groups=4)
    mixed.weight_hh_l0_reverse.data = mixed.weight_hh_l0_reverse.data.double()
    refuses(lambda: mixed(ones(3, 2, 8)), "input of weight_hh_l0_reverse", "float32", "float64")


def test_a_backend_that_cannot_run_says_so():
    refuses(
        lambda: PRU(8, 8, backend="cuda", levels=2, groups=4)(ones(3, 2, 8)),
        "backend='cuda'",
        "cpu",
        "'auto'",
    )
    pru = PRU(8, 8, context_transform="pyramidal", pooling="max", backend="loop", levels=2)
    refuses(lambda: pru(ones(3, 2, 8)), "backend='loop'", "pooling='max'", "'auto'")


@pytest.mark.parametrize(
    ("x", "hx", "fragments"),
    [
        (ones(2, 7), None, ("input_size", "got 7 expected 8")),
        (ones(1, 2, 8), None, ("input", "1D or 2D", "got 3D")),
        (np.ones((2, 8), dtype=np.float32), None, ("input", "ndarray", "Tensor")),
        (ones(2, 8), (ones(2, 7), ones(2, 8)), ("hidden0", "got 7, expected 8")),
        (ones(2, 8), (ones(2, 8), ones(3, 8)), ("hidden1", "batch size 2", "batch size 3")),
        (ones(2, 8), (ones(2, 8), ones(1, 2, 8)), ("hx[1]", "1D or 2D", "got 3D")),
        (ones(2, 8), (ones(2, 8), None), ("hx: c", "NoneType", "Tensor")),
        (ones(2, 8), (ones(2, 8), ones(8)), ("c", "(8,)", "(2, 8)")),
        (ones(2, 8), ones(3, 2, 8), ("hx", "pair")),
        (ones(2, 8, dtype=torch.float64), None, ("input", "float64", "float32")),
        (ones(2, 8), (ones(2, 8, dtype=torch.float64), ones(2, 8)), ("h", "float64", "float32")),
        (ones(2, 8), (ones(2, 8), ones(2, 8, device="meta")), ("c", "meta", "cpu")),
    ],
    ids=lambda value: None if isinstance(value, tuple) else "",
)
def test_cell(x: torch.Tensor, hx: object, fragments: tuple[str, ...]):
    refuses(lambda: PRUCell(8, 8, levels=2, groups=4)(x, hx), *fragments)


@pytest.mark.parametrize("make", [GroupedLinear, PyramidalTransform])
def test_transforms(make: type):
    refuses(lambda: make(8, 8)(ones(2, 7)), "7", "in_features=8")
    refuses(lambda: make(8, 8)(ones(2, 16)), "16", "in_features=8")
    refuses(lambda: make(8, 8)(ones(2, 8, dtype=torch.float64)), "float64", "float32")
    refuses(lambda: make(0, 8), "in_features=0")
    refuses(lambda: make(8, 0), "out_features=0")
    refuses(lambda: make(8, 8, bias="False"), "bias='False'", "True or False")
    refuses(lambda: make(8, 8, dtype=torch.int64), "dtype=torch.int64", "real floating-point")


def test_one_matrix_of_what_is_none():
    refuses(
        lambda: PyramidalTransform(8, 8, pooling="max").dense_weight(), "pooling='max'", "'average'", "'skip'"
    )


@pytest.mark.parametrize(
    ("changed", "fragments"),
    [
        ({"gates": ones(3, 2, 8)}, ("gates", "(3, 2, 8)", "(T, B, 4, M)")),
        ({"gates": ones(0, 2, 4, 8)}, ("gates", "(0, 2, 4, 8)", "at least 1")),
        ({"weight": ones(2, 4, 4, 3)}, ("weight", "(2, 4, 4, 3)", "(G, 4, D, D)")),
        ({"weight": ones(3, 4, 4, 4)}, ("weight", "(3, 4, 4, 4)", "8")),
        ({"weight": ones()}, ("weight", "()", "(G, 4, D, D)")),
        ({"bias": ones(32)}, ("bias", "(32,)", "(4, 8)")),
        ({"h0": ones(1, 8)}, ("h0", "(1, 8)", "(2, 8)")),
        ({"c0": ones(2, 7)}, ("c0", "(2, 7)", "(2, 8)")),
        ({"h0": ones(2, 8, device="meta")}, ("h0", "meta", "cpu")),
        ({"lengths": torch.tensor([1])}, ("lengths", "(1,)", "(2,)")),
        ({"lengths": torch.tensor([0, 3])}, ("lengths", "0", "1 to 3")),
        ({"lengths": torch.tensor([4, 1])}, ("lengths", "4", "1 to 3")),
        ({"lengths": torch.tensor([1.5, 2.0])}, ("lengths", "float32", "int64")),
        ({"backend": "fast"}, ("backend='fast'", "'loop'")),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_recurrence(changed: dict, fragments: tuple[str, ...]):
    given = {
        "gates": ones(3, 2, 4, 8),
        "weight": ones(2, 4, 4, 4),
        "bias": None,
        "h0": ones(2, 8),
        "c0": ones(2, 8),
    }
    recurrence(**given)
    for reverse in (False, True):
        refuses(lambda reverse=reverse: recurrence(**{**given, **changed}, reverse=reverse), *fragments)


def test_interop():
    refuses(lambda: PRU.from_lstm(nn.GRU(8, 8)), "lstm", "GRU", "nn.LSTM")
    lstm = nn.LSTM(8, 8, dtype=torch.complex128)
    refuses(lambda: PRU.from_lstm(lstm), "dtype=torch.complex128", "real floating-point")
    refuses(lambda: load_reference_weights(PRU(8, 8, levels=2, groups=4), {}, index=1), "index=1", "0")
