"""Figures and pages made from results; nothing here computes a bound."""

from lipkit.report.contents import About as About
from lipkit.report.contents import Contents as Contents
from lipkit.report.contents import Prints as Prints
from lipkit.report.gather import gathered as gathered
from lipkit.report.page import page as page
from lipkit.report.writing import write as write
