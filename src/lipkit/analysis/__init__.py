"""Why a constant grows, where, and at which frequencies: diagnostics of weights, training and data."""

from lipkit.analysis.curvature.hessian_inequalities import layerwise_hessian_bound as layerwise_hessian_bound
from lipkit.analysis.curvature.hessian_inequalities import smoothed_hessian_bound as smoothed_hessian_bound
from lipkit.analysis.curvature.loss_hessian import Hessian as Hessian
from lipkit.analysis.curvature.loss_hessian import relative_hessian as relative_hessian
from lipkit.analysis.curvature.sharpness import keskar_sharpness as keskar_sharpness
from lipkit.analysis.curvature.spectrum_estimates import ExtremeEigenvalues as ExtremeEigenvalues
from lipkit.analysis.curvature.spectrum_estimates import SpectralDensity as SpectralDensity
from lipkit.analysis.curvature.spectrum_estimates import TraceEstimate as TraceEstimate
from lipkit.analysis.curvature.spectrum_estimates import estimate_trace as estimate_trace
from lipkit.analysis.curvature.spectrum_estimates import extreme_eigenvalues as extreme_eigenvalues
from lipkit.analysis.curvature.spectrum_estimates import spectral_density as spectral_density
from lipkit.analysis.dynamics.history import History as History
from lipkit.analysis.dynamics.history import LayerHistory as LayerHistory
from lipkit.analysis.dynamics.profiler import Profiler as Profiler
from lipkit.analysis.dynamics.tracked_layers import AsMatrix as AsMatrix
from lipkit.analysis.dynamics.tracked_layers import AsOperator as AsOperator
from lipkit.analysis.singular_values.cluster_means import cluster_mean_derivative as cluster_mean_derivative
from lipkit.analysis.singular_values.curvature_of_values import SingularValueHessian as SingularValueHessian
from lipkit.analysis.singular_values.curvature_of_values import singular_value_hessian as singular_value_hessian
from lipkit.analysis.singular_values.decomposition import singular_vector_derivatives as singular_vector_derivatives
from lipkit.analysis.singular_values.taylor import Taylor as Taylor
from lipkit.analysis.singular_values.taylor import derivative as derivative
from lipkit.analysis.singular_values.taylor import taylor as taylor
