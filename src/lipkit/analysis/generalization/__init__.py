"""What is known of data that were not seen: complexities of classes, capacities of networks, measured gaps."""

from lipkit.analysis.generalization.algorithm_bounds import mutual_information_bound as mutual_information_bound
from lipkit.analysis.generalization.algorithm_bounds import pac_bayes_bound as pac_bayes_bound
from lipkit.analysis.generalization.algorithm_bounds import stability_bound as stability_bound
from lipkit.analysis.generalization.usable_information import UsableInformation as UsableInformation
from lipkit.analysis.generalization.usable_information import usable_information as usable_information
