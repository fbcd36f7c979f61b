"""`python -m kpybroker.sim.mutants`: finds the seed that catches each mutant."""

from kpybroker.sim.mutants.catalog import main

if __name__ == "__main__":
    main()
