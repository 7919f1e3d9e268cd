"""Why a constant grows, where, and at which frequencies: diagnostics of weights, training and data."""

from lipkit.analysis.singular_values.cluster_means import cluster_mean_derivative as cluster_mean_derivative
from lipkit.analysis.singular_values.curvature_of_values import SingularValueHessian as SingularValueHessian
from lipkit.analysis.singular_values.curvature_of_values import singular_value_hessian as singular_value_hessian
from lipkit.analysis.singular_values.decomposition import singular_vector_derivatives as singular_vector_derivatives
from lipkit.analysis.singular_values.taylor import Taylor as Taylor
from lipkit.analysis.singular_values.taylor import derivative as derivative
from lipkit.analysis.singular_values.taylor import taylor as taylor
