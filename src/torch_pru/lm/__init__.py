"""Language models of PRU layers: data, model, training, evaluation."""
