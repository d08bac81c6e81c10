"""The lab: small decision problems whose true advantages are known, to see how good a credit estimate is.

`turnwise lab` runs everything; from Python: `lab.run(lab.Settings(algos=["gigpo", "mine"]))`.
"""

from turnwise.lab.experiment import Settings, run, write
from turnwise.lab.problems import Builder, Problem, make, problems, register
from turnwise.lab.values import advantages, expected_return, skilled_policy
