"""The smoothed classifier: any model under noise, with its certified radii."""

import math
import operator
import warnings
from collections.abc import Callable, Sequence
from typing import Final, final

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from lipkit._seeds import check_seed
from lipkit.bound import Bound
from lipkit.bounds._base import Snapshot
from lipkit.bounds.lipschitz import network_of
from lipkit.certify.confidence_intervals import check_level
from lipkit.certify.radii.radius import require_subject
from lipkit.certify.smoothing.event import Method
from lipkit.certify.smoothing.noise import Gaussian, Noise
from lipkit.certify.smoothing.sampler import Classifier, Sampler, Stop, prepared
from lipkit.certify.smoothing.samples import Samples, join_samples
from lipkit.certify.smoothing.simplex_maps import Hardmax, SimplexMap
from lipkit.certify.smoothing.smoothed_radii import SmoothedRadii, check_method, radii_of, require_constants, theorem_of
from lipkit.certify.smoothing.statistics.methods import IntersectionUnion
from lipkit.certify.smoothing.statistics.prediction import top_class
from lipkit.certify.smoothing.statistics.sample_size import Anytime, least_samples
from lipkit.errors import ArgumentError, NonFiniteError, ShapeError

DEFAULT_METHOD: Final = IntersectionUnion()
# Why a Lipschitz bound is refused for a model that computes in half precision.
HALF_PRECISION: Final = (
    "A Lipschitz bound is of the network in real arithmetic, from which half precision is too far; evaluate the model "
    "in float32 or float64, or leave out `bound`."
)
_HARD_VOTES = Hardmax()
# The share of the samples of a prediction with soft votes that choose the class.
_CHOOSING = 10


class TooFewSamplesWarning(UserWarning):
    """So few samples prove nothing at the confidence that is asked for, whatever the model says."""


@final
class Smoothed:
    """g(x) = argmax over k of E tau_k(f(x + noise)): a model f, the law of the noise, and how each sample votes.

    Radii are proven for the function that is evaluated: f as it computes in its own precision, with the casts that are
    on (autocast, TF32), and noise as a law on the floating-point numbers of its type instead of on the real line.
    No theorem counts the difference to real arithmetic; with bfloat16 it is the network in bfloat16 that is certified.
    f must answer each row by itself. A module is evaluated in evaluation mode; a function sees to that itself.

    Args:
        model: A module, or any function from a batch to logits of shape (batch, classes).
        sigma: The standard deviation of Gaussian noise, in units of the inputs; or None with another `noise`.
        num_classes: The number of logits.
        noise: Another law, such as `rs.Laplace(0.25)`.
        simplex: How a sample votes, or several ways, among which methods such as LVM-RS choose for each input.

    Reference: Cohen, Rosenfeld, Kolter, ICML 2019.
    """

    def __init__(
        self,
        model: Classifier,
        sigma: float | None = None,
        *,
        num_classes: int,
        noise: Noise | None = None,
        simplex: SimplexMap | Sequence[SimplexMap] = _HARD_VOTES,
    ) -> None:
        if not callable(model):
            raise ArgumentError(f"A model is a function from a batch to logits, got {type(model).__name__}.")
        if isinstance(sigma, Noise):
            raise ArgumentError(f"sigma is the number of Gaussian noise; give another law as noise={sigma}.")
        if (sigma is None) == (noise is None):
            raise ArgumentError("Give either sigma, for Gaussian noise, or another noise such as rs.Laplace(0.25).")
        if noise is not None and not isinstance(noise, Noise):
            raise ArgumentError(f"`noise` is a law such as rs.Laplace(0.25), got {noise!r}.")
        if type(num_classes) is not int or num_classes < 2:
            raise ArgumentError(f"num_classes is the number of logits, 2 or more, got {num_classes!r}.")
        maps = (simplex,) if isinstance(simplex, SimplexMap) or not isinstance(simplex, Sequence) else tuple(simplex)
        if not maps or not all(isinstance(one, SimplexMap) for one in maps) or len(set(maps)) < len(maps):
            raise ArgumentError(f"`simplex` is a map such as rs.Hardmax(), or several different ones, got {simplex!r}.")
        self.model = model
        self.noise: Noise = noise if noise is not None else Gaussian(check_positive(sigma, "sigma"))
        self.num_classes = num_classes
        self.maps: tuple[SimplexMap, ...] = maps

    def sample(
        self,
        x: Tensor,
        n0: int = 100,
        n: int = 100_000,
        *,
        seed: int = 0,
        indices: Sequence[int] | None = None,
        block: int = 1000,
        progress: Callable[[int, int], None] | None = None,
        stop: Stop | None = None,
    ) -> Samples:
        """The votes of each input of a batch: `n0` samples that choose, and `n` others that prove.

        Counts and moments depend on the seed, the index of an input, `n0`, `n`, `block` and the kind of device (of CPU
        threads their number) alone, to the last bit. So any number of workers find what one finds.

        Args:
            x: Inputs as the model takes them, of shape (batch, ...).
            n0: Samples that choose.
            n: Samples that prove.
            seed: Draws the noise. A certificate holds for a seed that was chosen before looking at its samples.
            indices: A number for each input that its noise depends on; its place in the batch by default.
            block: Noisy copies in one forward pass, all of one input.
            progress: Called with the inputs done and their number.
            stop: Told of the samples of one input so far, after 1, 2, 4, ... blocks; True ends them. Only methods such
                as `rs.Anytime` may use what is left (`Samples.adaptive`).
        """
        places = self.check_inputs(x, indices)
        sampler = self.sampler(seed, block)
        check_count(n0, "n0")
        check_count(n, "n")
        found: list[Samples] = []
        with prepared(self.model):
            for one, place in zip(self.place(x), places, strict=True):
                found.append(sampler.draw(one, place, n0, n, stop))
                if progress is not None:
                    progress(len(found), len(x))
        return join_samples(found)

    def certify(
        self,
        x: Tensor,
        n0: int = 100,
        n: int = 100_000,
        alpha: float = 1e-3,
        method: Method = DEFAULT_METHOD,
        bound: Bound | None = None,
        *,
        seed: int = 0,
        indices: Sequence[int] | None = None,
        block: int = 1000,
        progress: Callable[[int, int], None] | None = None,
    ) -> SmoothedRadii:
        """The class of each input and a radius within which it is constant, each with probability 1 - `alpha`.

        With `bound`, a Lipschitz constant of the model itself, radii are the larger of what votes and constant prove
        together and what votes prove alone. It is a constant of the network in real arithmetic: what rounding adds to
        the votes is not counted, so half precision is refused, and so is a bound of another network. Other arguments
        are those of `sample`. With `rs.Anytime` easy inputs spend fewer than n samples.
        Cost: n0 + n forward passes for each input; a bound of a captured network is compared by one capture.
        """
        self.check_bound(bound, method, x)
        self.warn_if_hopeless(n, alpha, method, bound)
        stop = self.stop_rule(alpha, method, bound)
        samples = self.sample(x, n0, n, seed=seed, indices=indices, block=block, progress=progress, stop=stop)
        return radii_of(samples, self.noise, alpha, method, bound)

    def radii(
        self,
        samples: Samples,
        alpha: float = 1e-3,
        method: Method = DEFAULT_METHOD,
        bound: Bound | None = None,
    ) -> SmoothedRadii:
        """The radii that these samples prove. The model is not run; a `bound` is compared with it by one capture."""
        self.check_bound(bound, method, None)
        return radii_of(samples, self.noise, alpha, method, bound)

    def predict(
        self,
        x: Tensor,
        n: int = 1000,
        alpha: float = 1e-3,
        *,
        seed: int = 0,
        indices: Sequence[int] | None = None,
        block: int = 1000,
    ) -> Int64[Tensor, " batch"]:
        """The class of the smoothed classifier, or `ABSTAIN`; another class than the true one with probability alpha.

        Of hard votes the two largest counts a >= b are compared: 2 P(Bin(a + b, 1/2) >= a) <= alpha. With other votes
        the first of the declared maps is certified by the default method, with a tenth of the samples to choose the
        class. Radii of `rs.LowVariance` are about the map that it chose for an input (`SmoothedRadii.maps`); predict
        with that map alone.
        Reference: Cohen et al. 2019; Hung, Fithian, Annals of Statistics 2019.
        """
        check_level(alpha)
        check_count(n, "n")
        if self.maps != (Hardmax(),):
            n0 = max(1, n // _CHOOSING)
            rest = max(1, n - n0)
            return self.certify(x, n0, rest, alpha, seed=seed, indices=indices, block=block).label
        places, sampler = self.check_inputs(x, indices), self.sampler(seed, block)
        with prepared(self.model):
            counts = [sampler.count(one, place, n) for one, place in zip(self.place(x), places, strict=True)]
        return top_class(torch.stack(counts), alpha)

    def stop_rule(self, alpha: float, method: Method, bound: Bound | None) -> Stop | None:
        """When a method that may look at any time has seen enough; None for all others."""
        if not isinstance(method, Anytime):
            return None
        theorem = theorem_of(self.noise, bound)
        return lambda samples: bool(method.done(samples, alpha, theorem))

    def sampler(self, seed: int, block: int) -> Sampler:
        """The sampler of single images."""
        check_seed(seed)
        return Sampler(self.model, self.noise, self.maps, self.num_classes, seed, check_count(block, "block"))

    def place(self, x: Tensor) -> Tensor:
        """The inputs where the model lives, in its type; a function takes them as they are."""
        if not isinstance(self.model, nn.Module):
            return x
        # Weights that are whole numbers, of a quantised model, say nothing of its inputs.
        parameter = next((one for one in self.model.parameters() if one.is_floating_point()), None)
        return x if parameter is None else x.to(parameter.device, parameter.dtype)

    def check_inputs(self, x: Tensor, indices: Sequence[int] | None) -> Sequence[int]:
        """The index of each input, if these are inputs."""
        if not isinstance(x, Tensor) or not x.is_floating_point():
            kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise ArgumentError(
                f"Noise is added to tensors of floating-point numbers, got {kind}; convert as in training, an array by "
                "torch.from_numpy(x).float()."
            )
        if x.ndim < 2 or not len(x):
            raise ShapeError(
                f"Inputs have shape (batch, ...), with one at least, got {tuple(x.shape)}; give one as x[None]."
            )
        if not bool(torch.isfinite(x).all()):
            raise NonFiniteError("Some inputs are NaN or infinite, so nothing can be said of them; clean the data.")
        try:
            places = range(len(x)) if indices is None else [operator.index(i) for i in indices]
        except TypeError:
            places = []
        if len(places) != len(x) or min(places) < 0:
            raise ArgumentError(f"`indices` has a whole number >= 0 for each of {len(x)} inputs, got {indices}.")
        return places

    def check_bound(self, bound: Bound | None, method: Method, x: Tensor | None) -> None:
        """Refuse a bound that the votes cannot use, of another network than the model, or of inputs of another shape.

        A function that is no module cannot be compared with the network of a bound, so it takes a stated bound only,
        which says nothing of its network.
        """
        if bound is None:
            return
        require_constants(self.maps, method)
        where = self.place(torch.zeros(1) if x is None else x[:1])
        if torch.is_autocast_enabled(where.device.type) or where.dtype in (torch.float16, torch.bfloat16):
            raise ArgumentError(HALF_PRECISION)
        if not isinstance(bound, Bound) or bound.subject is None:
            return
        require_subject(bound, None, x)
        if not isinstance(self.model, nn.Module):
            raise ArgumentError(
                "Nobody can tell whether this bound is of the function that is smoothed; give the torch.nn.Module that "
                "was bounded, or state the constant: Bound.from_value(K, Kind.UPPER, 'why')."
            )
        example = self.place(torch.zeros(1, *bound.subject.source))
        with prepared(self.model):
            require_subject(bound, Snapshot(network_of(self.model, example)), x)

    def warn_if_hopeless(self, n: int, alpha: float, method: Method, bound: Bound | None = None) -> None:
        """Warn if `n` samples prove nothing at `alpha`, not even if all agree, and name a number that could."""
        check_method(method)
        enough = least_samples(method, alpha, self.num_classes, theorem_of(self.noise, bound), self.maps)
        if check_count(n, "n") >= enough:
            return
        warnings.warn(
            f"n={n} samples prove nothing at alpha={alpha:g}, even if all agree; give n={enough} at least.",
            TooFewSamplesWarning,
            stacklevel=3,
        )


def check_positive(number: float | None, name: str) -> float:
    """The number, if it is finite and above 0."""
    if isinstance(number, bool) or not isinstance(number, int | float) or not (math.isfinite(number) and number > 0):
        raise ArgumentError(f"{name} is a finite number > 0, as a Python number, got {number!r}.")
    return float(number)


def check_count(number: int, name: str) -> int:
    """The number, if it is a whole one and at least 1."""
    if type(number) is not int or number < 1:
        raise ArgumentError(f"{name} is a whole number of samples >= 1, got {number!r}.")
    return number
