"""Words of the command line about randomized smoothing: noise, votes and methods as the types they stand for."""

import math

from lipkit.certify import smoothing as rs
from lipkit.errors import ArgumentError, LipkitError

METHODS: dict[str, rs.Method] = {
    "intersection-union": rs.IntersectionUnion(),
    "cohen": rs.Cohen(),
    "class-partition": rs.ClassPartition(),
    "bonferroni": rs.Bonferroni(),
    "low-variance": rs.LowVariance(),
}


def parse_noise(name: str, sigma: float) -> rs.Noise:
    """The law of noise whose entries have the standard deviation `sigma`.

    Uniform on [-l, l] it is l/sqrt(3), with the density exp(-|t|/s)/(2 s) it is s sqrt(2).
    """
    if not (math.isfinite(sigma) and sigma > 0):
        raise ArgumentError(f"--sigma is the standard deviation of the noise, a number > 0, got {sigma:g}.")
    match name:
        case "gaussian":
            return rs.Gaussian(sigma)
        case "uniform":
            return rs.Uniform(math.sqrt(3) * sigma)
        case "laplace":
            return rs.Laplace(sigma / math.sqrt(2))
        case _:
            raise ArgumentError(f"--noise is gaussian, uniform or laplace, got {name!r}.")


def parse_maps(text: str) -> tuple[rs.SimplexMap, ...]:
    """`hardmax`, `softmax:T` and `sparsemax:T` or `sparsemax:T:MASS`, with commas between them."""
    found = tuple(_parse_map(word.strip()) for word in text.split(","))
    if len(set(found)) < len(found):
        raise ArgumentError(f"--maps names one way of voting twice, got {text!r}.")
    return found


def _parse_map(word: str) -> rs.SimplexMap:
    name, *numbers = word.split(":")
    try:
        match name, [float(one) for one in numbers]:
            case "hardmax", []:
                return rs.Hardmax()
            case "softmax", []:
                return rs.Softmax()
            case "softmax", [temperature]:
                return rs.Softmax(temperature)
            case "sparsemax", []:
                return rs.Sparsemax()
            case "sparsemax", [temperature]:
                return rs.Sparsemax(temperature=temperature)
            case "sparsemax", [temperature, mass]:
                return rs.Sparsemax(mass, temperature)
            case _:
                problem = ""
    except LipkitError as error:
        problem = f" ({error})"
    except ValueError:
        problem = ""
    raise ArgumentError(
        f"--maps lists hardmax, softmax:TEMPERATURE and sparsemax:TEMPERATURE:MASS with commas, got {word!r}{problem}."
    )


def parse_smoothing_method(text: str) -> rs.Method:
    """A method by its name, or `anytime:RADIUS`, which ends the samples of an image when that radius is proven."""
    name, colon, radius = text.partition(":")
    if text in METHODS:
        return METHODS[text]
    if name == "anytime" and colon:
        try:
            return rs.Anytime(float(radius))
        except (ValueError, LipkitError):
            pass
    raise ArgumentError(f"--method is {', '.join(METHODS)} or anytime:RADIUS, got {text!r}.")
