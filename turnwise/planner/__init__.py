"""Does a run fit, and what does it cost: on one GPU (`turnwise fit`, `--memory`) and on many (`turnwise cluster plan`). Nothing is run."""
