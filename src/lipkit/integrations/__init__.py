"""Callbacks that show the constant and the certified accuracy in the training loops of other packages."""

from lipkit.integrations.huggingface_callback import huggingface_callback as huggingface_callback
from lipkit.integrations.lightning_callback import lightning_callback as lightning_callback
from lipkit.integrations.training_watch import TrainingWatch as TrainingWatch
