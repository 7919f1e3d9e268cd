"""What products that vanish can cost."""

from torch import Tensor

from lipkit.linops import Compose, LinearOperator, Scaled, Stated, Sum, Sweep

# More than 10^17 times what one product can lose below the smallest numbers, 2^-1075.
VANISHED = 1e-305


def image_and_mass(op: LinearOperator, size: Tensor) -> tuple[Tensor, Tensor]:
    """D |x| and the sum of all values on the way there, for an operator D >= 0 made of parts.

    A coefficient that is carried back through the parts loses up to 2^-1075 in every product, at every stage; paired
    with the values that the rest of the way makes of |x|, that is at most `VANISHED` times the mass.
    """
    match op:
        case Compose(outer, inner):
            middle, before = image_and_mass(inner, size)
            image, after = image_and_mass(outer, middle)
            return image, before + after
        case Sum(left, right):
            (one, first), (other, second) = image_and_mass(left, size), image_and_mass(right, size)
            return one + other, first + second
        case Scaled(factor, inner):
            image, mass = image_and_mass(inner, size)
            image = factor * image
            return image, mass + image.sum()
        case Stated(inner):
            return image_and_mass(inner, size)
        case Sweep(edges, source, sink):
            values, total = {source: size}, size.new_zeros(())
            for k, j, edge in edges:
                image, mass = image_and_mass(edge, values[j])
                values[k] = values[k] + image if k in values else image
                total = total + mass
            return values[sink], total
        case _:
            image = op.apply(size)
            return image, size.sum() + image.sum()
