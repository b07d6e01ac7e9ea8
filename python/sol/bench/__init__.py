"""``python -m sol.bench``: compares the times of SOL and of other inference engines, on this machine, for given networks.

    __main__ -> network.measure, in the parent -> network.compare, in a child process -> table, chart

    target     finds the network: a user's function, or a name on a list of networks
    peers      the other engines; each is optional, and the output names missing ones
    timing     the protocol: engines run in turns, block by block; medians are compared
    load       measures the load of the machine by other processes
    network    all measurements of one network, each run in its own process
    limit      estimates the shortest possible time of a network on this machine
    machine    describes the machine and the versions of packages
    restrict   restricts the other engines to AVX2 if SOL_CPU=avx2
    process    runs a child process and returns its result
    table      results as tables on the terminal and in README; `chart`: as a bar chart

`python -m sol.bench --help` lists the options.
"""
