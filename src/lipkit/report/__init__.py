"""Figures and pages made from results; nothing here computes a bound."""

from lipkit.report.html.page import page as page
from lipkit.report.results.contents import About as About
from lipkit.report.results.contents import Contents as Contents
from lipkit.report.results.contents import Prints as Prints
from lipkit.report.results.gather import gathered as gathered
from lipkit.report.write_page import write as write
