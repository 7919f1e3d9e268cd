"""Text: distances between sequences, a convolutional classifier, and how many edits its answer survives."""

from lipkit.certify.text.classifier import PAD as PAD
from lipkit.certify.text.classifier import EditClassifier as EditClassifier
from lipkit.certify.text.distance import erp as erp
from lipkit.certify.text.distance import levenshtein as levenshtein
from lipkit.certify.text.distance import levenshtein_many as levenshtein_many
from lipkit.certify.text.edit_constants import EditConstants as EditConstants
from lipkit.certify.text.edit_constants import Pool as Pool
from lipkit.certify.text.edit_constants import edit_constants as edit_constants
from lipkit.certify.text.edit_radius import UNLIMITED as UNLIMITED
from lipkit.certify.text.edit_radius import edit_radius as edit_radius
