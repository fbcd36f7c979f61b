"""`python -m kpybroker.sim.mutants`: find the seed that catches each mutant."""

from kpybroker.sim.mutants.catalog import main

if __name__ == "__main__":
    main()
