"""Second derivatives of a loss in the parameters of a model: how flat a minimum is."""
