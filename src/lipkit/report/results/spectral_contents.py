"""What the page of a spectral game shows, as plain data."""

from dataclasses import dataclass
from typing import final

from lipkit._checksums import from_sealed_json, to_sealed_json
from lipkit.bounds.certificates.json_codec import from_plain, to_plain
from lipkit.errors import ArgumentError, RecordError

# The file of the result in the folder of a run.
SPECTRAL = "spectral.json"


@final
@dataclass(frozen=True)
class SpectralContents:
    """The result of a spectral game: estimates, all of them. Scores are value, low and high of a 95 % interval.

    `values` is the mean worth of each coalition, bit i for band i, None where coalitions were drawn; `weights` is the
    hash of the weights. JSON both ways, exactly.
    """

    model: str
    data: str
    command: str
    weights: str
    images: int
    rings: str
    beta: float
    shapley: tuple[float, ...]
    error: tuple[float, ...]
    sampling_error: tuple[float, ...]
    sid: tuple[float, ...]
    values: tuple[float, ...] | None
    printed: tuple[float, float, float]
    signed: tuple[float, float, float]

    def __post_init__(self) -> None:
        if len({len(self.shapley), len(self.error), len(self.sampling_error), len(self.sid)}) != 1 or not self.shapley:
            raise ArgumentError("Every band of a spectral game has a value, an error and an importance.")

    def lines(self) -> list[str]:
        """The result in words: a line for each band, from low to high frequencies, and the scores."""
        bands = [
            f"band {i + 1} of {len(self.shapley)}: {value:+.4f} ± {error:.4f} nats"
            for i, (value, error) in enumerate(zip(self.shapley, self.error, strict=True))
        ]
        scores = [
            f"score, {name}: {value:.4f} (95 %: {low:.4f} to {high:.4f})"
            for name, (value, low, high) in (("as printed", self.printed), ("signed", self.signed))
        ]
        return [*bands, *scores]

    def to_json(self) -> bytes:
        """As JSON text, with a checksum."""
        return to_sealed_json(to_plain(self, SpectralContents)) + b"\n"  # pyright: ignore[reportArgumentType]

    @classmethod
    def from_json(cls, content: bytes, where: str) -> "SpectralContents":
        """The contents that `to_json` wrote; anything else raises a `RecordError` that names `where`."""
        data = from_sealed_json(content.removesuffix(b"\n"), where, "run its command again")
        try:
            return from_plain(data, cls)  # pyright: ignore[reportArgumentType]
        except (ValueError, RecursionError) as error:
            said = str(error).replace("The certificate", "it")
            raise RecordError(f"{where} is no result of a spectral game ({said}); run its command again.") from error
