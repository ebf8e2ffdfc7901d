"""The experiments of the five papers, run on the operators of this package and judged by rules in code.

    watersmeet lab list                    every experiment: figure or table, claim, last verdict
    watersmeet lab run rpj/fig8            one experiment, all of a paper (`rpj`), or `all`
    watersmeet lab report                  one self-contained page of all that was run

The operators are those that Spark runs, driven in process. Where a paper's axis is time, the clock is virtual
(arrivals, page costs, row costs), so that a curve is the same on every machine; where a figure is about CPU time, it is
measured, and the experiment says so.
"""
