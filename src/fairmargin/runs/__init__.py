"""A run folder, from configuration to record.

build        a configuration → device, data, method and everything that trains it
recorder     writes the folder while a run trains
folder       how each file is written
record       what each file holds and how it is read; imports no PyTorch
extend       goes on with a run for more epochs, in a new folder
trackers     shows the numbers in TensorBoard, wandb, MLflow or Trackio
checkpoint   saves and loads the state of a training
progress     what a person sees meanwhile
environment  versions, machine and command, for environment.json
"""
