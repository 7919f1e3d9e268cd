"""One-class learning: networks of constant one that are large on given rows and small away from them."""

from lipkit.sdf.one_class.accurate_threshold import AccurateThreshold as AccurateThreshold
from lipkit.sdf.one_class.distance_samples import distances as distances
from lipkit.sdf.one_class.distance_samples import draw_around as draw_around
from lipkit.sdf.one_class.false_alarms import rows_needed as rows_needed
from lipkit.sdf.one_class.false_alarms import threshold as threshold
from lipkit.sdf.one_class.health import Health as Health
from lipkit.sdf.one_class.one_class_training import OneClass as OneClass
from lipkit.sdf.one_class.one_hot_columns import OneHotColumns as OneHotColumns
from lipkit.sdf.one_class.orthogonal_mlp import orthogonal_mlp as orthogonal_mlp
from lipkit.sdf.one_class.proposals import GaussianColumns as GaussianColumns
from lipkit.sdf.one_class.proposals import Proposal as Proposal
from lipkit.sdf.one_class.proposals import UniformBall as UniformBall
from lipkit.sdf.one_class.proposals import UniformBox as UniformBox
from lipkit.sdf.one_class.renewals import Alternating as Alternating
from lipkit.sdf.one_class.renewals import Lazy as Lazy
from lipkit.sdf.one_class.renewals import Renewal as Renewal
from lipkit.sdf.one_class.support_pictures import draw_support as draw_support
