"""Estimators of scikit-learn with a proven Lipschitz constant; `import lipkit` does not load them."""

from lipkit.estimators.one_class import OneClassSDF as OneClassSDF
from lipkit.estimators.pyod_signs import PyODSigns as PyODSigns
